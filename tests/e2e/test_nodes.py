"""Ranks in several processes answer as one rank does, and end and come back together."""
import concurrent.futures
import json
import os
import signal
import socket
import threading
import time

import openai
import pytest

from nodes import SMALL, Cluster, Head, Node, alive, free_port, wait_for

REPETITIONS = 20 if os.environ.get("BALTORO_LONG") else 1

STORY = "A number is a word, and a word is a number. " * 12
PROMPTS = [STORY + "What is 3 + 4?", STORY + "Who are you?", "Hello", STORY + "What is 3 + 4?", "What is 5 + 2?",
           STORY * 2 + "Count to ten.", "1, 2, 3,", STORY + "What is 3 + 5?"]


def ask_all(client, prompts, tokens=24):
    def ask(prompt):
        choice = client.completions.create(model="pocket", prompt=prompt, temperature=0, max_tokens=tokens,
                                           extra_body={"ignore_eos": True, "return_token_ids": True}).choices[0]
        return choice.token_ids
    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(ask, prompts))


@pytest.fixture(scope="module")
def one_rank():
    head = Head(*SMALL)
    head.wait_ready()
    answers = ask_all(head.client(), PROMPTS)
    head.stop()
    return answers


@pytest.mark.parametrize("nnodes,flags", [
    (2, ("-tp", "2")),
    (2, ("-pp", "2")),
    (2, ("-tp", "2", "-pp", "2")),
    (2, ("-tp", "2", "-dcp", "2")),
    (4, ("-tp", "2", "-pp", "2", "-dcp", "2")),
], ids=lambda value: "".join(value).replace("-", "") if isinstance(value, tuple) else str(value))
def test_nodes_answer_as_one_rank(one_rank, nnodes, flags):
    with Cluster(nnodes, *flags) as cluster:
        assert ask_all(cluster.head.client(), PROMPTS) == one_rank
        assert ask_all(cluster.head.client(), PROMPTS) == one_rank  # of the prefix cache
        hits = [line for line in cluster.head.metrics().splitlines() if line.startswith("vllm:prefix_cache_hits_total{")]
        assert float(hits[0].split()[-1]) > 500


def ngram(drafts):
    return json.dumps({"method": "ngram", "num_speculative_tokens": drafts, "prompt_lookup_min": 1, "adaptive": False})


def eagle3(drafts, **more):
    return json.dumps({"method": "eagle3", "num_speculative_tokens": drafts, "adaptive": False, **more})


# With two stages of two ranks, both of the last one share the draft model; with one, they are of different nodes.
@pytest.mark.parametrize("flags", [
    ("-pp", "2", "-sc", ngram(3)), ("-pp", "2", "-sc", eagle3(3)), ("-sc", eagle3(3)),
    ("-sc", eagle3(3, draft_tensor_parallel_size=1))], ids=["ngram", "pp2-model", "model", "model-whole"])
def test_nodes_verify_drafts_as_one_rank(one_rank, flags):
    with Cluster(2, "-tp", "2", *flags) as cluster:
        assert ask_all(cluster.head.client(), PROMPTS) == one_rank
        accepted = [line for line in cluster.head.metrics().splitlines()
                    if line.startswith("vllm:spec_decode_num_accepted_tokens_total{")]
        assert float(accepted[0].split()[-1]) > 0


QUESTION = dict(model="pocket", prompt="What is 3 + 4?", temperature=0, max_tokens=16)


def endless(client):
    stream = iter(client.completions.create(model="pocket", prompt="Hello", max_tokens=3500, stream=True,
                                            extra_body={"ignore_eos": True}))
    next(stream)
    return stream


def ends_with_an_error(stream, seconds):
    killed = time.monotonic()
    with pytest.raises(openai.APIError):
        for _ in stream:
            pass
    assert time.monotonic() - killed < seconds


@pytest.mark.parametrize("flags", [("-tp", "2"), ("-pp", "2")], ids=["tp2", "pp2"])
@pytest.mark.parametrize("victim", ["node", "head"])
def test_a_killed_engine_ends_streams_and_comes_back(flags, victim):
    with Cluster(2, *flags) as cluster:
        client = cluster.head.client(max_retries=0)
        before = client.completions.create(**QUESTION).choices[0].text
        for _ in range(REPETITIONS):
            streams = [endless(client) for _ in range(3)]
            engines = cluster.head.engine_pid(), cluster.nodes[1].engine_pid()
            os.kill(engines[0] if victim == "head" else engines[1], signal.SIGKILL)
            for stream in streams:
                ends_with_an_error(stream, 5)
            wait_for(lambda: cluster.health() == 503, 2, "a door that says so")
            wait_for(lambda: cluster.health() == 200, 30, "the engine")
            assert cluster.head.engine_pid() != engines[0] and cluster.nodes[1].engine_pid() != engines[1]
            assert cluster.head.process.poll() is None and cluster.nodes[1].process.poll() is None
            assert client.completions.create(**QUESTION).choices[0].text == before


def test_an_idle_head_notices_that_a_node_is_gone():
    with Cluster(2, "-pp", "2") as cluster:
        os.kill(cluster.nodes[1].engine_pid(), signal.SIGKILL)
        wait_for(lambda: cluster.health() == 503, 5, "a door that says so")
        wait_for(lambda: cluster.health() == 200, 30, "the engine")


def test_of_three_nodes_one_comes_late_and_one_is_replaced():
    with Cluster(3, "-pp", "3", start=(1,), wait=False) as cluster:
        time.sleep(6)  # longer than an attempt of node 1 lasts
        cluster.nodes[2] = cluster.start_node(2)
        cluster.head.wait_ready(60)
        client = cluster.head.client(max_retries=0)
        before = client.completions.create(**QUESTION).choices[0].text
        lost = cluster.nodes[2]
        for pid in (lost.process.pid, lost.engine_pid()):
            os.kill(pid, signal.SIGKILL)
        lost.process.wait()
        wait_for(lambda: cluster.health() == 503, 10, "a door that says so")
        time.sleep(6)
        cluster.nodes[2] = cluster.start_node(2)
        wait_for(lambda: cluster.health() == 200, 30, "the engine")
        assert cluster.nodes[1].process.poll() is None, cluster.nodes[1].text()
        assert client.completions.create(**QUESTION).choices[0].text == before


def test_a_head_whose_port_is_taken_ends_and_says_so():
    with socket.socket() as taken:
        port = free_port()
        taken.bind(("127.0.0.1", port))
        taken.listen()
        head = Head(*SMALL, "-tp", "2", "--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(port))
        assert head.process.wait(30) == 1
        assert head.says("Address already in use") and head.says("--master-port")


def test_a_clean_stop_is_no_error():
    with Cluster(2, "-tp", "2") as cluster:
        cluster.head.process.terminate()
        assert cluster.head.process.wait(10) == 0 and cluster.nodes[1].process.wait(10) == 0
        for log in (cluster.head.text(), cluster.nodes[1].text()):
            assert "ERROR" not in log, log


def test_while_a_node_is_away_every_answer_is_503():
    with Cluster(2, "-tp", "2") as cluster:
        client = cluster.head.client(max_retries=0)
        os.kill(cluster.nodes[1].engine_pid(), signal.SIGKILL)
        deadline, refused = time.monotonic() + 30, 0
        while not refused or cluster.health() != 200:
            assert time.monotonic() < deadline
            try:
                client.completions.create(model="pocket", prompt="a", max_tokens=1)
            except openai.APIStatusError as error:
                assert error.status_code == 503 and int(error.response.headers["retry-after"]) >= 1, error
                assert cluster.health() == 503 or refused
                refused += 1


def test_a_killed_door_leaves_nothing_behind():
    for _ in range(REPETITIONS):
        with Cluster(2, "-tp", "2") as cluster:
            endless(cluster.head.client(max_retries=0))
            pids = cluster.pids()
            assert len(pids) == 4
            killed = time.monotonic()
            cluster.head.process.kill()
            cluster.head.process.wait()
            assert cluster.nodes[1].process.wait(10) == 1
            wait_for(lambda: not any(map(alive, pids)), max(0.1, 10 - (time.monotonic() - killed)), "the end of all")
            assert cluster.nodes[1].says("the head node at 127.0.0.1")


def test_a_head_that_is_stopped_takes_its_nodes_along():
    with Cluster(4, "-tp", "2", "-pp", "2") as cluster:
        pids = cluster.pids()
        assert cluster.head.stop() == 0
        assert [node.process.wait(5) for node in cluster.nodes.values()] == [0, 0, 0]
        wait_for(lambda: not any(map(alive, pids)), 5, "the end of all")


def test_answers_are_held_to_their_form_by_the_head():
    with Cluster(2, "-pp", "2") as cluster:
        shape = {"type": "object", "properties": {"sum": {"type": "integer"}, "why": {"enum": ["so", "thus"]}},
                 "required": ["sum", "why"], "additionalProperties": False}
        for _ in range(4):
            answer = cluster.head.client().chat.completions.create(
                model="pocket", messages=[{"role": "user", "content": "What is 3 + 4?"}], max_tokens=60,
                response_format={"type": "json_schema", "json_schema": {"name": "sum", "schema": shape}},
                extra_body={"chat_template_kwargs": {"thinking": False}})
            got = json.loads(answer.choices[0].message.content)
            assert isinstance(got["sum"], int) and got["why"] in ("so", "thus")


def test_a_node_may_be_started_again():
    with Cluster(2, "-tp", "2") as cluster:
        client = cluster.head.client(max_retries=0)
        before = client.completions.create(**QUESTION).choices[0].text
        cluster.nodes[1].process.kill()
        cluster.nodes[1].process.wait()
        wait_for(lambda: cluster.health() == 503, 5, "a door that says so")
        wait_for(lambda: "Waiting for the other nodes" in cluster.head.text(), 15, "a line that says so")
        cluster.nodes[1] = cluster.start_node(1)
        wait_for(lambda: cluster.health() == 200, 30, "the engine")
        assert client.completions.create(**QUESTION).choices[0].text == before


@pytest.mark.parametrize("victim", ["node", "head"])
def test_five_seconds_of_standstill_are_waited_for(victim):
    with Cluster(2, "-tp", "2") as cluster:
        client = cluster.head.client(max_retries=0)
        got = []

        def run():
            got.append(client.completions.create(model="pocket", prompt="Hello", max_tokens=500,
                                                 extra_body={"ignore_eos": True}).usage.completion_tokens)

        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        engine = (cluster.head if victim == "head" else cluster.nodes[1]).engine_pid()
        os.kill(engine, signal.SIGSTOP)
        time.sleep(5)
        os.kill(engine, signal.SIGCONT)
        for thread in threads:
            thread.join(60)
        assert got == [500] * 3
        assert engine in (cluster.head.engine_pid(), cluster.nodes[1].engine_pid())


def test_a_longer_standstill_is_an_end_and_whoever_wakes_up_comes_back():
    with Cluster(2, "-tp", "2") as cluster:
        client = cluster.head.client(max_retries=0)
        before = client.completions.create(**QUESTION).choices[0].text
        stream = endless(client)
        engine = cluster.nodes[1].engine_pid()
        os.kill(engine, signal.SIGSTOP)
        ends_with_an_error(stream, 14)
        os.kill(engine, signal.SIGCONT)
        wait_for(lambda: cluster.health() == 200, 30, "the engine")
        assert client.completions.create(**QUESTION).choices[0].text == before


@pytest.mark.parametrize("flag, one, other, said", [
    ("--seed", "7", "8", ("--seed", "7", "8")),
    ("--mm-processor-cache-gb", "1", "2", ("--mm-processor-cache-gb", "1073741824 bytes", "2147483648 bytes")),
    ("-sc", ngram(3), "{}", ("--speculative-config", "ngram, 3 tokens, adaptive false", "none")),
    ("-sc", eagle3(3), eagle3(3, draft_tensor_parallel_size=1),
     ("--speculative-config", "draft_tensor_parallel_size 2", "draft_tensor_parallel_size 1"))], ids=["seed", "pictures", "drafts", "draft ranks"])
def test_nodes_that_were_started_differently_are_told_how(flag, one, other, said):
    port = str(free_port())
    common = [*SMALL, "--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", port, "-tp", "2"]
    node = Node(*common, "--node-rank", "1", flag, one)
    head = Head(*common, "--node-rank", "0", flag, other)
    try:
        assert head.process.wait(30) == 1 and node.process.wait(30) == 1
        for text in (head.text(), node.text()):
            assert all(word in text for word in said)
    finally:
        head.process.kill()
        node.stop()


def test_a_stranger_does_not_get_in(tmp_path):
    keys = []
    for name in ("right", "wrong"):
        path = tmp_path / name
        path.write_text(name * 8 + "\n")
        path.chmod(0o600)
        keys.append(str(path))
    with Cluster(2, "-tp", "2", "--cluster-key-file", keys[0], start=[], wait=False) as cluster:
        flags = [keys[1] if flag == keys[0] else flag for flag in cluster.flags]
        stranger = Node(*flags, "--node-rank", "1")
        assert stranger.process.wait(30) == 1 and stranger.says("key")
        assert cluster.head.process.poll() is None
        cluster.nodes[1] = cluster.start_node(1)
        cluster.head.wait_ready()
        assert cluster.head.client().completions.create(**QUESTION).choices[0].text


def test_without_a_secret_other_machines_are_not_served():
    head = Head(*SMALL, "--nnodes", "2", "--master-addr", "192.0.2.1", "-tp", "2")
    assert head.process.wait(30) == 1 and head.says("openssl rand -hex 32")
    path_error = Head(*SMALL, "--nnodes", "3", "-tp", "2")
    assert path_error.process.wait(30) == 2 and "cannot be dealt out evenly" in path_error.text()
