"""Replicas of two nodes behind the web server of one of them: shared out, killed and back, and who is not let in."""
import concurrent.futures
import json
import os
import signal
import time
import urllib.error
import urllib.request

import openai
import pytest

from conftest import Server
from nodes import Head, Node, alive, free_port, wait_for
from test_pictures import BLUE, RED, TEXT, part, said
from test_replicas import complete, counters, engines, settled

SMALL = ("--device", "cpu", "--max-model-len", "2048", "--max-num-seqs", "16", "--kv-cache-memory-bytes", "32M", "--cpu-threads", "1")


class TwoNodes:
    """Replicas 0 and 1 on the head, 2 and 3 on a node without a web server."""

    def __init__(self, *flags, node_flags=(), wait=True):
        port = str(free_port())
        self.flags = [*SMALL, "-dp", "4", "-dpl", "2", "--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", port, *flags]
        self.node = self.start_node(*node_flags)
        self.head = self.start_head()
        if wait:
            try:
                self.head.wait_ready(120)
                self.wait_for_all()
            except (RuntimeError, AssertionError):
                self.stop()
                raise RuntimeError(self.head.text() + "\nnode:\n" + self.node.text())

    def start_node(self, *flags):
        return Node(*self.flags, "--headless", "--data-parallel-start-rank", "2", *flags)

    def start_head(self):
        return Head(*self.flags)

    def ready(self):
        return counters(self.head, "baltoro:engine_ready")

    def wait_for_all(self):
        wait_for(lambda: self.ready() == {0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0}, 60, "all replicas")

    def health(self):
        try:
            with urllib.request.urlopen(self.head.url + "/health", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def stop(self):
        if self.head.process.poll() is None:
            self.head.stop()
        self.node.stop()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


@pytest.fixture(scope="module")
def two():
    with TwoNodes() as nodes:
        yield nodes


def test_requests_go_to_all_of_them(two):
    assert set(engines(two.head)) == {0, 1} and set(engines(two.node)) == {2, 3}

    def ask(i):
        answer = complete(two.head, prompt=f"Person {i}: what is {i} + 3?", max_tokens=4, ignore_eos=True)
        assert answer["usage"]["completion_tokens"] == 4
        return answer["choices"][0]["text"]

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, range(120)))
    generated = settled(two.head, "vllm:generation_tokens_total")
    assert sum(generated.values()) == 480 and all(count > 40 for count in generated.values()), generated
    for rank in range(4):
        answer = complete(two.head, {"X-data-parallel-rank": str(rank)}, prompt="Person 5: what is 5 + 3?", max_tokens=4, ignore_eos=True)
        assert answer["choices"][0]["text"] == answers[5]
    assert two.head.says("4 replicas ready in ") or two.head.says("of 4 replicas ready in ")
    assert two.health() == (200, "")


def test_answers_are_held_to_their_form_there_too(two):
    answer = two.head.client().chat.completions.create(
        model="pocket", messages=[{"role": "user", "content": "What is 3 + 4?"}], max_tokens=60,
        response_format={"type": "json_schema", "json_schema": {"name": "sum", "schema": {
            "type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"], "additionalProperties": False}}},
        extra_headers={"X-data-parallel-rank": "3"}, extra_body={"chat_template_kwargs": {"thinking": False}})
    assert isinstance(json.loads(answer.choices[0].message.content)["sum"], int)


def test_pictures_travel_there(two):
    def said_at(rank, picture):
        answer = two.head.client().chat.completions.create(
            model="pocket", temperature=0, max_tokens=5, logprobs=True, messages=[{"role": "user", "content": [part(picture), TEXT]}],
            extra_headers={"X-data-parallel-rank": str(rank)})
        return answer.usage.prompt_tokens, said(answer)

    here, there = said_at(0, RED), said_at(3, RED)
    assert here == there and here[0] > 50
    assert said_at(3, BLUE)[1] != there[1]


def stream_at(server, rank, tokens=400):
    client = server.client(max_retries=0)
    stream = iter(client.completions.create(model="pocket", prompt=f"Count {rank}", max_tokens=tokens, stream=True, temperature=0,
                                            extra_body={"ignore_eos": True}, extra_headers={"X-data-parallel-rank": str(rank)}))
    next(stream)
    return stream


def how_it_ends(stream):
    try:
        return sum(1 for _ in stream)
    except openai.APIError as error:
        return str(error)


def test_an_engine_that_is_killed_there_ends_its_own_answers_alone_and_comes_back(two):
    streams = [stream_at(two.head, rank) for rank in range(4)]
    before = engines(two.node)
    os.kill(before[2], signal.SIGKILL)
    killed = time.monotonic()
    complete(two.head)
    assert time.monotonic() - killed < 1.5
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        ended = list(pool.map(how_it_ends, streams))
    assert "the engine stopped" in ended[2] and all(isinstance(ended[rank], int) and ended[rank] > 100 for rank in (0, 1, 3)), ended
    two.wait_for_all()
    assert engines(two.node)[3] == before[3] and engines(two.node)[2] != before[2]
    assert complete(two.head, {"X-data-parallel-rank": "2"})["choices"]


def test_a_node_that_is_killed_is_missed_and_may_be_started_again(two):
    streams = [stream_at(two.head, rank) for rank in range(4)]
    children = engines(two.node).values()
    two.node.process.kill()
    two.node.process.wait()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        ended = list(pool.map(how_it_ends, streams))
    assert all("the engine stopped" in ended[rank] for rank in (2, 3)), ended
    assert all(isinstance(ended[rank], int) for rank in (0, 1)), ended
    wait_for(lambda: not any(map(alive, children)), 5, "the end of its engines")
    assert two.ready() == {0: 1.0, 1: 1.0, 2: 0.0, 3: 0.0}
    status, body = two.health()
    assert status == 200 and json.loads(body) == {"replicas_missing": [2, 3]}
    with pytest.raises(urllib.error.HTTPError) as refused:
        complete(two.head, {"X-data-parallel-rank": "3"})
    assert refused.value.code == 503
    assert complete(two.head)["choices"]
    assert two.head.says("Waiting for replicas 2, 3 of other nodes")
    two.node = two.start_node()
    two.wait_for_all()
    assert complete(two.head, {"X-data-parallel-rank": "3"})["choices"]


def test_a_door_that_comes_back_finds_the_engines_loaded():
    with TwoNodes("--head-timeout", "60") as nodes:
        before = engines(nodes.node)
        stream = stream_at(nodes.head, 2, 1500)
        nodes.head.process.kill()
        nodes.head.process.wait()
        assert isinstance(how_it_ends(stream), str)
        assert nodes.node.says("Replica 2: the head at 127.0.0.1")
        nodes.head = nodes.start_head()
        nodes.head.wait_ready(120)
        nodes.wait_for_all()
        assert engines(nodes.node) == before
        assert complete(nodes.head, {"X-data-parallel-rank": "2"})["choices"]
        # A head that is stopped takes the node along.
        assert nodes.head.stop() == 0 and nodes.node.process.wait(10) == 0
        assert nodes.node.says("The head was stopped; this node leaves")


def test_a_door_that_stays_away_is_an_error():
    with TwoNodes("--head-timeout", "1") as nodes:
        children = engines(nodes.node).values()
        nodes.head.process.kill()
        nodes.head.process.wait()
        assert nodes.node.process.wait(20) == 1 and nodes.node.says("did not come within 1 s")
        wait_for(lambda: not any(map(alive, children)), 5, "the end of its engines")


def test_who_does_not_belong_there_is_told_why(tmp_path):
    keys = []
    for name in ("right", "wrong"):
        path = tmp_path / name
        path.write_text(name * 8 + "\n")
        path.chmod(0o600)
        keys.append(str(path))
    with TwoNodes("--cluster-key-file", keys[0]) as nodes:
        for flags, said in ((("--cluster-key-file", keys[1]), "another cluster key"),
                            (("--seed", "8"), '--seed is "8" on replica '),
                            (("--max-model-len", "1024"), '--max-model-len is "1024" on replica '),
                            (("--data-parallel-start-rank", "1"), "--data-parallel-start-rank must be 2 or more")):
            stranger = nodes.start_node(*flags)
            assert stranger.process.wait(60) == 1 and stranger.says(said), stranger.text()
        second = nodes.start_node()
        assert second.process.wait(60) == 1 and second.says("already; each needs a number of its own")
        assert nodes.ready() == {0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0}


def test_a_server_without_its_other_nodes_serves_and_says_whom_it_misses():
    port = str(free_port())
    flags = [*SMALL, "-dp", "3", "-dpl", "1", "--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", port]
    server = Server(*flags)
    try:
        assert server.says("1 of 3 replicas ready in ") and server.says("Waiting for replicas 1, 2 of other nodes, at 127.0.0.1:" + port)
        assert complete(server)["choices"]
        taken = Server(*flags, wait=False)
        assert taken.process.wait(60) == 1 and taken.says("--data-parallel-rpc-port")
    finally:
        assert server.stop() == 0


def test_a_web_server_without_a_replica_serves_those_of_a_node():
    flags = [*SMALL, "-dp", "2", "--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", str(free_port())]
    alone = Head(*flags, "-dpl", "0")
    assert alone.says("Waiting for replicas 0, 1 of other nodes", 30), alone.text()
    assert alone.stop() == 0  # while nobody has come
    head = Head(*flags, "-dpl", "0")
    node = Node(*flags, "--headless")
    try:
        head.wait_ready(60)
        wait_for(lambda: counters(head, "baltoro:engine_ready") == {0: 1.0, 1: 1.0}, 60, "both replicas")
        assert engines(head) == {} and set(engines(node)) == {0, 1}
        answers = [complete(head, {"X-data-parallel-rank": str(rank)})["choices"][0]["text"] for rank in (0, 1)]
        assert answers[0] == answers[1]
        node.process.kill()
        wait_for(lambda: not any(counters(head, "baltoro:engine_ready").values()), 10, "their end")
        with pytest.raises(urllib.error.HTTPError) as refused:
            complete(head)
        assert refused.value.code == 503
        node.process.wait()
        node = Node(*flags, "--headless")
        wait_for(lambda: counters(head, "baltoro:engine_ready") == {0: 1.0, 1: 1.0}, 60, "both replicas")
        assert complete(head)["choices"][0]["text"] == answers[0]
        assert head.stop() == 0 and node.process.wait(10) == 0
    finally:
        head.process.kill()
        node.stop()


def test_without_a_secret_other_machines_are_not_served():
    head = Head(*SMALL, "-dp", "2", "-dpl", "1", "--data-parallel-address", "192.0.2.1")
    assert head.process.wait(30) == 1 and head.says("openssl rand -hex 32")
    nowhere = Head(*SMALL, "-dp", "2", "-dpl", "1")
    assert nowhere.process.wait(30) == 2 and nowhere.says("--data-parallel-address")
