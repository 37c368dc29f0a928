"""A fault ends a request, not the service."""
import concurrent.futures
import json
import os
import shutil
import signal
import threading
import time
import urllib.error
import urllib.request

import openai
import pytest

from conftest import ROOT, Server
from nodes import free_port


def health(server):
    try:
        with urllib.request.urlopen(server.url + "/health", timeout=5) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def health_body(server):
    """Of a server that does not serve; empty of one that does."""
    try:
        with urllib.request.urlopen(server.url + "/health", timeout=5):
            return {"engine": {"reason": "", "failed_starts": 0, "next_start_seconds": None}}
    except urllib.error.HTTPError as error:
        return json.loads(error.read())


def wait_for(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def endless(client, **options):
    return client.completions.create(model="pocket", prompt="Hello", max_tokens=50000, stream=True,
                                     extra_body={"ignore_eos": True}, **options)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def own_server():
    server = Server()
    yield server
    if server.process.poll() is None:
        server.stop()


def test_a_killed_engine_ends_its_streams_and_comes_back(own_server):
    client = own_server.client(max_retries=0)
    question = dict(model="pocket", prompt="What is 3 + 4?", temperature=0, max_tokens=16)
    before = client.completions.create(**question).choices[0].text
    for _ in range(3):
        stream = iter(endless(client))
        next(stream)
        engine = own_server.engine_pid()
        killed = time.monotonic()
        os.kill(engine, signal.SIGKILL)
        with pytest.raises(openai.APIError):
            for _ in stream:
                pass
        assert time.monotonic() - killed < 5
        wait_for(lambda: health(own_server) == 200 and own_server.engine_pid() not in (None, engine), 30)
        assert own_server.process.poll() is None
        assert client.completions.create(**question).choices[0].text == before


def test_while_the_engine_is_away_the_answer_is_503(own_server):
    client = own_server.client(max_retries=0)
    os.kill(own_server.engine_pid(), signal.SIGKILL)
    seen = set()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        seen.add(health(own_server))
        try:
            client.completions.create(model="pocket", prompt="a", max_tokens=1)
        except openai.APIStatusError as error:
            assert error.status_code == 503 and int(error.response.headers["retry-after"]) >= 1
        if health(own_server) == 200 and 503 in seen:
            break
    assert 503 in seen
    # With its ordinary retries the client does not notice.
    assert own_server.client(max_retries=8).completions.create(model="pocket", prompt="a", max_tokens=1)


def test_health_is_a_heartbeat(own_server):
    engine = own_server.engine_pid()
    os.kill(engine, signal.SIGSTOP)
    try:
        wait_for(lambda: health(own_server) == 503, 20)
        assert health_body(own_server)["engine"]["reason"] == "The engine's process does not run."
    finally:
        os.kill(engine, signal.SIGCONT)
    wait_for(lambda: health(own_server) == 200, 6)


@pytest.fixture
def moved_model(tmp_path):
    """A model that can be put away, and back."""
    here, away = tmp_path / "model", tmp_path / "away"
    shutil.copytree(ROOT / "pocket/model", here)
    return here, away


def test_a_server_is_back_when_what_kept_its_engine_away_is_gone(moved_model):
    here, away = moved_model
    server = Server(str(here), "--served-model-name", "pocket")
    try:
        here.rename(away)
        os.kill(server.engine_pid(), signal.SIGKILL)
        wait_for(lambda: health(server) == 503 and health_body(server)["engine"]["failed_starts"] > 2, 60)
        wait_for(lambda: health_body(server)["engine"]["next_start_seconds"] is not None, 60)
        body = health_body(server)
        assert body["error"]["code"] == 503 and str(here) not in json.dumps(body)
        assert server.says(str(here))  # the log says where
        assert server.process.poll() is None

        away.rename(here)
        wait_for(lambda: health(server) == 200, 60)
        assert server.client().completions.create(model="pocket", prompt="a", max_tokens=1)
    finally:
        server.stop()


def test_a_server_whose_engine_stays_away_ends_with_a_code(moved_model):
    here, away = moved_model
    server = Server(str(here), "--engine-restart-timeout", "1")
    here.rename(away)
    os.kill(server.engine_pid(), signal.SIGKILL)
    assert server.process.wait(60) == 1
    assert server.says("no engine has stayed (--engine-restart-timeout)")


def test_what_a_client_can_mend_is_400(client, model):
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=model, prompt="a", max_tokens=4,
                                  extra_body={"allowed_token_ids": [5], "stop_token_ids": [5], "min_tokens": 2})
    assert "allowed_token_ids and min_tokens" in refused.value.message
    # Found while the answer is made; the same in a stream that has begun.
    ambiguous = dict(model=model, prompt="aaaaaaaa", max_tokens=60, seed=1,
                     extra_body={"structured_outputs": {"regex": "(.{0,200}){0,20}z"}})
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(**ambiguous)
    assert "too ambiguous" in refused.value.message
    with pytest.raises(openai.APIError) as refused:
        list(client.completions.create(stream=True, **ambiguous))
    assert int(refused.value.code) == 400 and refused.value.type == "BadRequestError"


def test_a_killed_door_leaves_no_engine(own_server):
    stream = iter(endless(own_server.client(max_retries=0)))
    next(stream)
    engine = own_server.engine_pid()
    own_server.process.kill()
    own_server.process.wait()
    wait_for(lambda: not alive(engine), 5)


def test_sigterm_ends_at_once_without_a_drain_time():
    server = Server()
    stream = iter(endless(server.client(max_retries=0)))
    next(stream)
    engine = server.engine_pid()
    begun = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - begun < 5 and not alive(engine)


def test_sigterm_ends_a_server_that_is_not_ready():
    # The other node never comes.
    server = Server("--nnodes", "2", "-tp", "2", "--master-addr", "127.0.0.1", "--master-port", str(free_port()), wait=False)
    wait_for(lambda: "Starting vLLM server on" in server.text() and server.engine_pid(), 20)
    engine = server.engine_pid()
    begun = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - begun < 5
    assert server.says("Shutting down; the engine was not ready yet")
    wait_for(lambda: not alive(engine), 5)


def test_sigterm_drains():
    server = Server("--shutdown-timeout", "30")
    client = server.client(max_retries=0)
    got = []

    def run():
        got.append(client.completions.create(model="pocket", prompt="Hello", max_tokens=300,
                                             extra_body={"ignore_eos": True}).usage.completion_tokens)

    thread = threading.Thread(target=run)
    thread.start()
    wait_for(lambda: "num_requests_running{" in urllib.request.urlopen(server.url + "/metrics").read().decode()
             and json.load(urllib.request.urlopen(server.url + "/load"))["server_load"] == 1, 10)
    server.process.send_signal(signal.SIGTERM)
    wait_for(lambda: server.process.poll() is not None or health_gone(server), 5)
    thread.join(30)
    assert got == [300] and server.process.wait(30) == 0


def health_gone(server):
    try:
        return health(server) == 503
    except (urllib.error.URLError, ConnectionError):
        return True


def test_a_full_queue_is_429_and_the_client_retries():
    server = Server("--max-num-seqs", "1", "--max-queued-requests", "1")

    def ask(client, tokens):
        try:
            return client.completions.create(model="pocket", prompt="Hello", max_tokens=tokens,
                                             extra_body={"ignore_eos": True}).usage.completion_tokens
        except openai.RateLimitError as error:
            return error

    try:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: ask(server.client(max_retries=0), 400), range(8)))
            refused = [a for a in answers if isinstance(a, openai.RateLimitError)]
            assert refused and answers.count(400) == 8 - len(refused) >= 2
            assert all(int(e.response.headers["retry-after"]) >= 1 for e in refused)
            assert list(pool.map(lambda _: ask(server.client(max_retries=20), 5), range(8))) == [5] * 8
    finally:
        server.stop()


def test_a_model_that_is_not_there_is_named():
    server = Server("/no/such/model", wait=False)
    assert server.process.wait(20) == 1 and server.says("/no/such/model: no such directory")
