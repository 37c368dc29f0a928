"""A stop ends whatever is running, tells everybody who waits, and nothing but a stop ends the server."""
import concurrent.futures
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request

import pytest

from conftest import PROGRAM, Server

GRACE = 2  # seconds after --shutdown-timeout


def post(server, path, body, timeout=60):
    """Status and text of an answer; an answer without an end raises."""
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def begun(server, requests):
    deadline = time.monotonic() + 20
    while json.load(urllib.request.urlopen(server.url + "/load"))["server_load"] < requests:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_everybody_who_waits_hears_of_the_stop():
    server = Server()
    long = {"model": "pocket", "max_tokens": 60000, "ignore_eos": True, "temperature": 0}
    chat = {**long, "messages": [{"role": "user", "content": "Hello"}]}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        whole = [pool.submit(post, server, path, body) for path, body in (
            ("/v1/completions", {**long, "prompt": "Hello"}), ("/v1/chat/completions", chat), ("/v1/messages", chat))]
        streams = [pool.submit(post, server, path, {**body, "stream": True}) for path, body in (
            ("/v1/completions", {**long, "prompt": "Hello"}), ("/v1/chat/completions", chat), ("/v1/messages", chat))]
        begun(server, 6)
        time.sleep(0.5)  # until the streams have begun
        asked = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - asked < GRACE
        for answer in whole:
            status, text = answer.result()
            assert status == 503 and "shutting down" in text and "error" in json.loads(text)
        for answer in streams[:2]:
            status, text = answer.result()
            assert status == 200 and text.endswith("data: [DONE]\n\n")
            assert json.loads(text.split("data: ")[-2])["error"]["code"] == 503
        status, text = streams[2].result()
        assert status == 200 and text.split("event: ")[-1].startswith("error\n")


def test_a_stop_does_not_wait_for_what_is_being_prepared():
    server = Server()
    long = {"prompt": "a b c d " * (1 << 20), "return_token_strs": True}

    def ask_until_refused():  # so that however fast the machine is, some are being prepared when the stop comes
        while True:
            try:
                status, _ = post(server, "/tokenize", long)
            except (urllib.error.URLError, ConnectionError):
                return None  # asked after the server had ended
            if status != 200:
                return status

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(ask_until_refused) for _ in range(8)]
        time.sleep(1.5)  # until all have been sent
        asked = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - asked < GRACE
        statuses = [answer.result() for answer in answers]
        assert set(statuses) <= {503, None} and 503 in statuses


def test_a_stop_does_not_wait_for_an_engine_that_stands_still():
    server = Server()
    engine = server.engine_pid()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(post, server, "/v1/completions", {"prompt": "Hello", "max_tokens": 60000, "ignore_eos": True})
        begun(server, 1)
        os.kill(engine, signal.SIGSTOP)
        asked = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - asked < GRACE
        assert answer.result()[0] == 503
    deadline = time.monotonic() + 5
    while os.path.exists(f"/proc/{engine}/cmdline") and open(f"/proc/{engine}/cmdline").read():
        assert time.monotonic() < deadline, "the engine is left"
        time.sleep(0.02)


def test_a_second_signal_ends_at_once():
    server = Server("--shutdown-timeout", "60")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(post, server, "/v1/completions", {"prompt": "Hello", "max_tokens": 60000, "ignore_eos": True})
        begun(server, 1)
        server.process.send_signal(signal.SIGTERM)
        while "Shutting down" not in server.text():
            time.sleep(0.01)
        asked = time.monotonic()
        assert server.stop(signal.SIGINT) == 1
        assert time.monotonic() - asked < 1
        with pytest.raises(Exception):
            answer.result()


def test_signals_that_mean_something_elsewhere_end_nothing():
    server = Server()
    for signum in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE):
        for pid in (server.process.pid, server.engine_pid()):
            os.kill(pid, signum)
    time.sleep(0.2)
    engine = server.engine_pid()
    assert post(server, "/v1/completions", {"prompt": "Hello", "max_tokens": 2})[0] == 200
    assert server.process.poll() is None and server.engine_pid() == engine
    assert "restart" not in server.text().lower()
    assert server.stop() == 0


def test_a_server_without_standard_files_keeps_its_log_out_of_its_sockets():
    server = Server(wait=False)  # only for a free port
    server.wait_ready()
    port = server.url.rsplit(":", 1)[1]
    server.stop()
    # With nobody to take 0, 1 and 2, the first sockets would get these numbers.
    process = subprocess.Popen([PROGRAM, "serve", "--host", "127.0.0.1", "--port", port, "--enable-log-requests"],
                               preexec_fn=lambda: os.closerange(0, 3))
    try:
        server.url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 60
        while True:
            try:
                status, text = post(server, "/v1/completions", {"prompt": "Hello", "max_tokens": 2})
            except (urllib.error.URLError, ConnectionError):
                status = 0
            if status == 200:
                break
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        assert json.loads(text)["usage"]["completion_tokens"] == 2
        for fd in range(3):
            assert os.readlink(f"/proc/{process.pid}/fd/{fd}") == "/dev/null"
    finally:
        process.terminate()
        assert process.wait(10) == 0
