#!/usr/bin/env python3
"""Two processes with half of a machine's GPUs each act as two nodes: what they answer, and what happens when one dies.

    python3 tests/e2e/nodes_on_cards.py [--gpus 4] [--repeats 1] [--model pocket/model] [-- FLAGS OF SERVE]

Needs nothing but Python and two or four GPUs (BALTORO names the program, else build/release/apps/baltoro). With four GPUs
the layout is `-pp 2 -tp 2`, with two `-tp 2`. A table of seconds comes last; the exit status is 1 if a bound is passed:
error events 5 s after a kill, no process 10 s after the door was killed.
"""
import argparse
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("BALTORO", str(ROOT / "build/release/apps/baltoro"))
QUESTION = {"model": "pocket", "prompt": "What is 3 + 4?", "temperature": 0, "max_tokens": 16}


def free_port():
    with socket.socket() as listener:
        for port in range(17000 + os.getpid() % 1000, 19000):
            try:
                listener.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    sys.exit("no port is free between 17000 and 19000")


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def engine_of(pid):
    for children in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            for child in map(int, children.read_text().split()):
                if b"engine" in pathlib.Path(f"/proc/{child}/cmdline").read_bytes():
                    return child
        except (FileNotFoundError, ProcessLookupError):
            pass
    return None


class Cluster:
    def __init__(self, options):
        half = options.gpus // 2
        layout = ["-tp", "2"] if half == 1 else ["-pp", "2", "-tp", str(half)]
        flags = [options.model, "--served-model-name", "pocket", "--device", "cuda", "--max-model-len", "8192", *layout,
                 "--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(free_port()), *options.flags]
        self.logs = [tempfile.NamedTemporaryFile(prefix="baltoro-node-", suffix=".log") for _ in range(2)]
        self.started = time.monotonic()
        self.processes = []
        for rank in (0, 1):
            own = ["--host", "127.0.0.1", "--port", "0"] if rank == 0 else ["--headless"]
            gpus = ",".join(str(gpu) for gpu in range(rank * half, (rank + 1) * half))
            self.processes.append(subprocess.Popen(
                [PROGRAM, "serve", *flags, "--node-rank", str(rank), *own], stdout=subprocess.DEVNULL, stderr=self.logs[rank],
                env={**os.environ, "CUDA_VISIBLE_DEVICES": gpus}))
        self.url = None
        while self.url is None:
            found = re.search(r"Ready: http://(\S+)", self.text(0))
            if found:
                self.url = found.group(1)
            elif time.monotonic() - self.started > 120 or any(process.poll() is not None for process in self.processes):
                self.stop()
                sys.exit("the nodes did not start:\n" + self.text(0) + "\n--- the other\n" + self.text(1))
            time.sleep(0.02)
        self.ready = time.monotonic() - self.started

    def text(self, rank):
        return pathlib.Path(self.logs[rank].name).read_text()

    def ask(self):
        request = urllib.request.Request(f"http://{self.url}/v1/completions", json.dumps(QUESTION).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)["choices"][0]["text"]

    def answers_again(self, seconds=60):
        start = time.monotonic()
        while time.monotonic() - start < seconds:
            try:
                return self.ask(), time.monotonic() - start
            except urllib.error.HTTPError as error:
                if error.code != 503:
                    sys.exit(f"{error.code}: {error.read().decode()}")
                time.sleep(0.05)
            except OSError:
                time.sleep(0.05)
        sys.exit(f"no answer within {seconds} s:\n" + self.text(0) + "\n--- the other\n" + self.text(1))

    def pids(self):
        parents = [process.pid for process in self.processes]
        return [pid for parent in parents for pid in (parent, engine_of(parent)) if pid]

    def stop(self):
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Endless(threading.Thread):
    """A stream that would go on for thousands of tokens; `ended` is when and with what it did end."""

    def __init__(self, url):
        super().__init__(daemon=True)
        self.connection = http.client.HTTPConnection(url, timeout=60)
        body = {"model": "pocket", "prompt": "Hello", "max_tokens": 8000, "stream": True, "ignore_eos": True}
        self.connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        self.answer = self.connection.getresponse()
        self.answer.readline()
        self.ended = self.last = None
        self.told = False
        self.start()

    def run(self):
        try:
            for line in self.answer:
                self.told |= b'"error"' in line
                if line.strip():
                    self.last = line.decode().strip()
        except (OSError, http.client.HTTPException) as error:
            self.last = f"connection: {error!r}"
        self.ended = time.monotonic()


def killed_engine(cluster, rank, before):
    streams = [Endless(cluster.url) for _ in range(3)]
    victim = engine_of(cluster.processes[rank].pid)
    killed = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    for stream in streams:
        stream.join(30)
    slowest = max((stream.ended or time.monotonic()) - killed for stream in streams)
    told = sum(stream.told for stream in streams)
    door = cluster.processes[0].poll() is None
    answer, again = cluster.answers_again()
    good = slowest < 5 and told == 3 and door and answer == before
    return good, slowest, again, f"{told} of 3 streams were told by an error event; door {'up' if door else 'DOWN'}"


def killed_door(cluster):
    stream = Endless(cluster.url)
    pids = cluster.pids()
    host, port = cluster.url.split(":")
    killed = time.monotonic()
    cluster.processes[0].kill()
    cluster.processes[0].wait()
    stream.join(15)
    left = pids
    while time.monotonic() - killed < 20:
        cluster.processes[1].poll()
        left = [pid for pid in pids if alive(pid)]
        if not left:
            break
        time.sleep(0.02)
    seconds = time.monotonic() - killed
    with socket.socket() as probe:
        closed = probe.connect_ex((host, int(port))) != 0
    return seconds < 10 and not left and closed, seconds, f"{len(pids)} processes before, {len(left)} left; port {'closed' if closed else 'OPEN'}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=4, choices=(2, 4))
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--model", default=str(ROOT / "pocket/model"))
    parser.add_argument("flags", nargs="*", help="more flags of serve, behind --")
    options = parser.parse_args()
    rows, good = [], True
    for _ in range(options.repeats):
        cluster = Cluster(options)
        try:
            before, _ = cluster.answers_again()
            rows.append(f"ready after {cluster.ready:.2f} s, answers {before!r}")
            for rank, name in ((1, "the headless node"), (0, "the head")):
                fine, slowest, again, words = killed_engine(cluster, rank, before)
                good &= fine
                rows.append(f"{'' if fine else 'FAILED: '}engine of {name} killed: streams end after {slowest:.2f} s, "
                            f"the same answer after {again:.2f} s; {words}")
            fine, seconds, words = killed_door(cluster)
            good &= fine
            rows.append(f"{'' if fine else 'FAILED: '}door killed: all gone after {seconds:.2f} s; {words}")
        finally:
            cluster.stop()
    print("\n".join(rows))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
