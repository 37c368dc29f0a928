"""What all commands do with their output: one that cannot be written is an error, and progress is one line that never wraps."""
import fcntl
import gzip
import http.server
import json
import os
import pty
import re
import struct
import subprocess
import termios
import threading
import time

import pytest

from conftest import PROGRAM, ROOT

POCKET = str(ROOT / "pocket/model")


@pytest.mark.parametrize("words", [
    ["--help"], ["--version"], ["serve", "--help=all"], ["help", "--markdown"], ["plan", POCKET], ["plan", POCKET, "--json"],
    ["inspect", POCKET], ["inspect", POCKET, "--json"]], ids=" ".join)
def test_a_full_disk_is_an_error(words):
    with open("/dev/full", "w") as full:
        done = subprocess.run([PROGRAM, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1 and "error: standard output: " in done.stderr


class Slow(http.server.BaseHTTPRequestHandler):
    """Takes a quarter of a second for an answer, which is wrong."""

    def log_message(self, *_):
        pass

    def answer(self, body):
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.answer({"data": [{"id": "slow"}]})

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(0.25)
        self.answer({"choices": [{"message": {"role": "assistant", "content": "no"}, "finish_reason": "stop"}]})


@pytest.fixture(scope="module")
def eval_words(tmp_path_factory):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    cases = tmp_path_factory.mktemp("cases") / "cases.jsonl"
    with gzip.open(ROOT / "pocket/eval/cases.jsonl.gz", "rt") as all_cases:
        cases.write_text(next(all_cases) * 8)
    yield ["eval", "--url", f"http://127.0.0.1:{server.server_port}", "--cases", str(cases), "--concurrency", "1"]
    server.shutdown()


def on_terminal(words, columns):
    """What comes to a terminal of so many columns, and the exit code."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen([PROGRAM, *words], stdin=slave, stdout=subprocess.DEVNULL, stderr=slave)
    os.close(slave)
    text = b""
    while True:
        try:
            more = os.read(master, 65536)
        except OSError:
            more = b""
        if not more:
            break
        text += more
    os.close(master)
    return text.decode(), process.wait(60)


def test_progress_is_one_line_that_never_wraps(eval_words):
    text, code = on_terminal(eval_words, 14)
    assert code == 0
    drawn = re.findall(r"\r\x1b\[K([^\r\n\x1b]*)", text)
    assert any(re.fullmatch(r"\d of 8 cases ?", line) for line in drawn), text  # of "... are done"
    assert all(len(line) < 14 for line in drawn) and "\n" not in text
    assert text.endswith("\r\x1b[K")  # it makes room for what comes after it


def test_pipes_have_no_progress_of_what_is_short(eval_words):
    done = subprocess.run([PROGRAM, *eval_words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == ""
