"""The log: its form, how much of it a start takes, and what becomes of the server where nobody reads it."""
import datetime
import json
import os
import pty
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.request

from conftest import PROGRAM, Server

REQUESTS = 2500  # each causes a line of about 150 bytes; a pipe holds 64 KiB and the queue 1,024 lines
TRACE = "0af7651916cd43dd8448eb211c80319c"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(url, body=None, headers=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **(headers or {})})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode()


def until_healthy(url):
    end = time.monotonic() + 120
    while True:
        try:
            return get(url + "/health")
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.05)


def test_a_log_that_nobody_reads_stops_nothing():
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen([PROGRAM, "serve", "--host", "127.0.0.1", "--port", str(port), "--enable-log-requests",
                               "--max-model-len", "256"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"})
    try:
        until_healthy(url)
        def ask(count):
            for _ in range(count):
                get(url + "/v1/completions", {"prompt": [1, 2], "max_tokens": 1, "ignore_eos": True})
        askers = [threading.Thread(target=ask, args=(REQUESTS // 10,)) for _ in range(10)]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()
        assert get(url + "/health") == ""
        metrics = get(url + "/metrics")
        dropped = sum(map(float, re.findall(r'baltoro:log_lines_dropped_total\{process="APIServer"[^}]*\} (\S+)', metrics)))
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0  # still unread
        text = server.stderr.read().decode()
        told = text.count("Received request")
        assert told < REQUESTS and dropped > 0
    finally:
        server.kill()
        server.wait()


def test_a_log_that_is_read_tells_all_to_the_last_line():
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen([PROGRAM, "serve", "--host", "127.0.0.1", "--port", str(port), "--enable-log-requests"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    text = []
    reader = threading.Thread(target=lambda: text.append(server.stderr.read().decode()))
    reader.start()
    try:
        until_healthy(url)
        for i in range(20):
            trace = {5: f"00-{TRACE}-b7ad6b7169203331-01", 6: f"00-{TRACE}-01"}.get(i)
            get(url + "/v1/completions", {"prompt": [1, 2], "max_tokens": 1}, {"traceparent": trace} if trace else None)
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0
        reader.join()
        assert text[0].count("Received request") == 20 and "Shutting down" in text[0]
        lines = [line for line in text[0].splitlines() if "Received request" in line]
        assert [i for i, line in enumerate(lines) if line.endswith(f", trace: {TRACE}")] == [5]
        assert text[0].count("trace: ") == 1
    finally:
        server.kill()
        server.wait()


def lines_of(*flags, env=None, ready="Ready: "):
    """Starts and stops a server; its lines, and which of them was the one that said it is ready."""
    server = Server("--load-format", "stand-in", *flags, env=env)
    assert server.stop() == 0
    lines = server.text().splitlines()
    return lines, next(i for i, line in enumerate(lines) if ready in line)


def test_every_line_is_an_object_on_demand():
    server = Server("--log-format", "json", "--enable-log-requests", "--served-model-name", 'a "b"', env={"TERM": "xterm"})
    try:
        get(server.url + "/v1/completions", {"prompt": "Hello", "max_tokens": 2})
        engine = server.engine_pid()
        os.kill(engine, signal.SIGKILL)
        end = time.monotonic() + 60
        while server.engine_pid() in (engine, None):
            assert time.monotonic() < end
            time.sleep(0.05)
    finally:
        server.stop()
    lines = [json.loads(line) for line in server.text().splitlines()]
    assert {line["process"] for line in lines} == {"APIServer", "EngineCore"}
    assert {line["level"] for line in lines} > {"INFO"}
    for line in lines:
        assert set(line) == {"time", "level", "process", "pid", "source", "message"}
        assert datetime.datetime.fromisoformat(line["time"].replace("Z", "+00:00")).tzinfo is not None
    said = [line["message"] for line in lines]
    assert any("Received request" in one for one in said) and any('"a \\"b\\""' in one for one in said)


def test_the_start_takes_a_screen():
    lines, ready = lines_of()
    assert ready < 20, "\n".join(lines)
    assert not any("Route: " in line for line in lines)
    assert all(re.match(r"\((APIServer|EngineCore) pid=\d+\) (INFO|WARNING) ", line) for line in lines)
    lines, _ = lines_of(env={"VLLM_LOGGING_LEVEL": "DEBUG"})
    assert sum("Route: /v1/chat/completions, Methods: POST" in line for line in lines) == 1


def on_terminal(env):
    """What a start that fails writes to a terminal."""
    parent, child = pty.openpty()
    process = subprocess.Popen([PROGRAM, "serve", "/no/such/model"], stderr=child, stdout=subprocess.DEVNULL,
                               env={**os.environ, "TERM": "xterm", **env})
    os.close(child)
    text = b""
    try:
        while more := os.read(parent, 4096):
            text += more
    except OSError:  # the other end is closed
        pass
    os.close(parent)
    assert process.wait(30) == 1
    return text.decode()


def test_levels_are_coloured_on_a_terminal_that_wants_it():
    assert "\x1b[31mERROR\x1b[0m" in on_terminal({"NO_COLOR": ""})
    assert "\x1b" not in on_terminal({"NO_COLOR": "1"}) and "\x1b" not in on_terminal({"TERM": "dumb"})
    run = subprocess.run([PROGRAM, "serve", "/no/such/model"], stderr=subprocess.PIPE, env={**os.environ, "TERM": "xterm"})
    assert b"ERROR" in run.stderr and b"\x1b" not in run.stderr
