"""A running server for the tests: `baltoro serve` with the pocket model on a free port."""
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import urllib.request

import openai
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("BALTORO", str(ROOT / "build/release/apps/baltoro"))


def metrics_of(server):
    """With all that came before: an engine counts for its door ten times a second."""
    time.sleep(0.3)
    return urllib.request.urlopen(server.url + "/metrics").read().decode()


class Server:
    """One `baltoro serve` and what the tests ask of it."""

    def __init__(self, *flags, host="127.0.0.1", env=None, wait=True, program=PROGRAM):
        self.log = tempfile.NamedTemporaryFile(prefix="baltoro-e2e-", suffix=".log")
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [program, "serve", "--host", host, "--port", "0", *flags],
            stderr=self.log, stdout=subprocess.DEVNULL, env={**os.environ, **(env or {})})
        self.url = None
        if wait:
            self.wait_ready()

    def text(self):
        return pathlib.Path(self.log.name).read_text()

    def says(self, what, seconds=20):
        """Whether the log has it, or comes to have it: lines are written by a thread of their own, and by two processes."""
        end = time.monotonic() + seconds
        while what not in self.text():
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True

    def wait_ready(self, seconds=120):
        while time.monotonic() - self.started < seconds:
            found = re.search(r"Ready: (http\S+)", self.text())
            if found:
                self.url = found.group(1)
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise RuntimeError("the server did not start:\n" + self.text())

    def client(self, **options):
        return openai.OpenAI(base_url=self.url + "/v1", api_key=options.pop("api_key", "none"), **options)

    def engine_pid(self):
        """The engine is the child of whichever of the door's threads started it."""
        for children in pathlib.Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            for pid in map(int, children.read_text().split()):
                try:
                    if b"engine" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
                        return pid
                except FileNotFoundError:
                    pass
        return None

    def stop(self, signum=signal.SIGTERM, seconds=30):
        if self.process.poll() is None:
            self.process.send_signal(signum)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


@pytest.fixture(scope="session")
def server():
    running = Server()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def client(server):
    return server.client()


@pytest.fixture(scope="session")
def model(client):
    return client.models.list().data[0].id
