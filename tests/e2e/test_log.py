"""A log that nobody reads: the server goes on, tells what it dropped, and ends."""
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.request

from conftest import PROGRAM

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
