"""Long bodies of one client do not hold up those of another."""
import concurrent.futures
import json
import urllib.request

import pytest

from conftest import Server


@pytest.fixture
def server():
    running = Server("--api-key", "one", "two")
    yield running
    running.stop()


def tokenize(server, key, body):
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    with urllib.request.urlopen(urllib.request.Request(server.url + "/tokenize", body, headers), timeout=60) as answer:
        answer.read()
        return answer.status


def test_clients_take_turns(server):
    long = json.dumps({"prompt": "a b c d " * (1 << 20), "return_token_strs": True}).encode()
    short = json.dumps({"prompt": "a b c d " * (1 << 13)}).encode()  # long enough to be prepared elsewhere
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        held = [pool.submit(tokenize, server, "one", long) for _ in range(12)]
        concurrent.futures.wait(held, return_when=concurrent.futures.FIRST_COMPLETED)
        assert tokenize(server, "two", short) == 200
        # In one queue it would have come after all of them.
        assert sum(answer.done() for answer in held) <= 8
        assert {answer.result() for answer in held} == {200}
