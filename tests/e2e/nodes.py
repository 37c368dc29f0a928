"""A replica over several nodes: one `baltoro serve` for each, on this machine or in network namespaces."""
import os
import pathlib
import random
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

from conftest import PROGRAM, Server

# Small steps, so that prompts are cut and a start is quick; float32, so that ranks choose what one rank chooses.
SMALL = ("--device", "cpu", "--dtype", "float32", "--max-num-batched-tokens", "64", "--max-num-seqs", "8",
         "--max-model-len", "4096", "--kv-cache-memory-bytes", "64M")


def free_port():
    """Below the ports that the kernel deals out, so that nobody is given it before it is used."""
    while True:
        port = random.randrange(10000, 20000)
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def wait_for(condition, seconds, what="it"):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain for {what}"
        time.sleep(0.02)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def engine_of(pid):
    """The engine is the child of whichever of the process's threads started it."""
    for children in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            for child in map(int, children.read_text().split()):
                if b"engine" in pathlib.Path(f"/proc/{child}/cmdline").read_bytes():
                    return child
        except FileNotFoundError:
            pass
    return None


class Node:
    """A node that is not the head."""

    def __init__(self, *flags, env=None, wrap=()):
        self.log = tempfile.NamedTemporaryFile(prefix="baltoro-node-", suffix=".log")
        self.process = subprocess.Popen([*wrap, PROGRAM, "serve", *flags], stderr=self.log,
                                        stdout=subprocess.DEVNULL, env={**os.environ, **(env or {})})

    def text(self):
        return pathlib.Path(self.log.name).read_text()

    says = Server.says

    def engine_pid(self):
        return engine_of(self.process.pid)

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Cluster:
    """A head and its nodes, all with the same flags."""

    def __init__(self, nnodes, *flags, env=None, master="127.0.0.1", wraps=None, start=range(1 << 30), wait=True):
        self.port = free_port()
        self.flags = [*SMALL, *flags, "--nnodes", str(nnodes), "--master-addr", master, "--master-port", str(self.port)]
        self.env, self.wraps = env, wraps or [()] * nnodes
        self.nodes = {rank: self.start_node(rank) for rank in range(1, nnodes) if rank in start}
        self.head = Head(*self.flags, "--node-rank", "0", env=env, wrap=self.wraps[0])
        if wait:
            try:
                self.head.wait_ready(60)
            except RuntimeError:
                logs = "\n".join(node.text() for node in self.nodes.values())
                self.stop()
                raise RuntimeError(self.head.text() + "\nnodes:\n" + logs)

    def start_node(self, rank):
        return Node(*self.flags, "--node-rank", str(rank), "--headless", env=self.env, wrap=self.wraps[rank])

    def pids(self):
        """Of every process of every node."""
        parents = [self.head.process.pid, *(node.process.pid for node in self.nodes.values())]
        return [pid for parent in parents for pid in (parent, engine_of(parent)) if pid]

    def health(self):
        try:
            with urllib.request.urlopen(self.head.url + "/health", timeout=5) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    def stop(self):
        if self.head.process.poll() is None:
            self.head.stop()
        for node in self.nodes.values():
            node.stop()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Head(Server):
    def __init__(self, *flags, env=None, wrap=(), host="127.0.0.1"):
        self.log = tempfile.NamedTemporaryFile(prefix="baltoro-head-", suffix=".log")
        self.started = time.monotonic()
        self.process = subprocess.Popen([*wrap, PROGRAM, "serve", "--host", host, "--port", "0", *flags],
                                        stderr=self.log, stdout=subprocess.DEVNULL, env={**os.environ, **(env or {})})
        self.url = None

    def metrics(self):
        return urllib.request.urlopen(self.url + "/metrics", timeout=5).read().decode()
