"""Replicas of a model behind one web server: shared out, pinned, killed and back."""
import concurrent.futures
import json
import os
import pathlib
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request

import openai
import pytest

from conftest import PROGRAM, Server

REQUESTS = 10_000 if os.environ.get("BALTORO_LONG") else 400


def engines(server):
    """The process of each replica that runs, by its number."""
    found = {}
    for children in pathlib.Path(f"/proc/{server.process.pid}/task").glob("*/children"):
        for pid in map(int, children.read_text().split()):
            try:
                words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except FileNotFoundError:
                continue
            if b"--replica" in words:
                found[int(words[words.index(b"--replica") + 1])] = pid
    return found


def counters(server, name):
    """Of each replica, by its number."""
    text = urllib.request.urlopen(server.url + "/metrics").read().decode()
    return {int(engine): float(value)
            for engine, value in re.findall(rf'^{name}{{[^}}]*engine="(\d+)"[^}}]*}} (\S+)$', text, re.M)}


def settled(server, name):
    """Of a server without work: engines tell what they count ten times a second."""
    seen = counters(server, name)
    while True:
        time.sleep(0.3)
        now = counters(server, name)
        if now == seen:
            return now
        seen = now


def complete(server, headers=None, **fields):
    body = {"model": "pocket", "prompt": "Hello there", "max_tokens": 8, "temperature": 0, **fields}
    request = urllib.request.Request(server.url + "/v1/completions", json.dumps(body).encode(),
                                     {"content-type": "application/json", **(headers or {})})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.loads(answer.read())


def wait_for(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture(scope="module")
def four():
    running = Server("--data-parallel-size", "4", "--max-model-len", "2048", "--max-num-seqs", "16", "--kv-cache-memory-bytes", "32M")
    yield running
    assert running.stop() == 0


def test_requests_are_shared_out_and_none_is_lost_or_doubled(four):
    assert set(engines(four)) == {0, 1, 2, 3}
    # In the long run many begin with an introduction of their person: of all together one replica's cache cannot hold half.
    people, words = (40, 0) if REQUESTS < 10_000 else (100, 15)
    intros = [" ".join(f"word{who}x{i}" for i in range(words * (who % 5))) for who in range(people)]
    prompts = [f"{intros[i % people]} Person {i % people}: what is {i} + {i * 7 % 90}? " + "The rest of this text is long. " * (i % 7)
               for i in range(REQUESTS)]

    def ask(prompt, headers=None, **fields):
        answer = complete(four, headers, prompt=prompt, max_tokens=4, ignore_eos=True, **fields)
        assert answer["usage"]["completion_tokens"] == 4
        return answer["choices"][0]["text"], answer["usage"]["prompt_tokens"]

    def hit_rate_of(asking, items):
        before = [sum(settled(four, f"vllm:prefix_cache_{what}_total").values()) for what in ("hits", "queries")]
        began = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            answers = list(pool.map(asking, items))
        took = time.monotonic() - began
        after = [sum(settled(four, f"vllm:prefix_cache_{what}_total").values()) for what in ("hits", "queries")]
        return answers, (after[0] - before[0]) / (after[1] - before[1]), took

    answers, hit_rate, took = hit_rate_of(ask, prompts)
    alone = [ask(prompt) for prompt in prompts[:20]]
    assert alone == answers[:20]
    generated = settled(four, "vllm:generation_tokens_total")
    assert sum(generated.values()) == 4 * (REQUESTS + 20)
    assert all(count > 0.1 * sum(generated.values()) for count in generated.values()), generated
    if REQUESTS < 10_000:
        return
    # Some of them in turns, so that each person comes to each replica; with a salt, so that nothing of before is found.
    again, in_turns, took_in_turns = hit_rate_of(
        lambda i: ask(prompts[i], {"X-data-parallel-rank": str((i + i // people) % 4)}, cache_salt="in turns"), range(2000))
    assert again == answers[:2000]
    lengths = sorted(count for _, count in answers)
    print(f"{REQUESTS} requests of {lengths[0]} to {lengths[-1]} tokens, median {lengths[len(lengths) // 2]}: of the prompts' tokens "
          f"{hit_rate:.3f} found, in {took:.0f} s; of 2,000 in turns {in_turns:.3f}, in {took_in_turns:.0f} s; "
          f"answered by each {sorted(generated.values())}")
    assert hit_rate > in_turns + 0.2


def test_a_conversation_stays_where_its_prefix_is(four):
    hits, queries = settled(four, "vllm:prefix_cache_hits_total"), settled(four, "vllm:prefix_cache_queries_total")
    texts = [f"Story {who}. " + " ".join(f"word{who}x{i}" for i in range(120)) for who in range(8)]
    for turn in range(4):
        for who, text in enumerate(texts):
            complete(four, prompt=text, max_tokens=2)
            texts[who] = text + f" Turn {turn}."
    found = sum(settled(four, "vllm:prefix_cache_hits_total").values()) - sum(hits.values())
    asked = sum(settled(four, "vllm:prefix_cache_queries_total").values()) - sum(queries.values())
    assert found > 0.7 * 0.75 * asked  # of each story three turns of four come back


def test_a_client_may_choose_its_replica(four):
    for rank in (2, 0):
        before = settled(four, "vllm:generation_tokens_total")
        for _ in range(3):
            complete(four, {"X-data-parallel-rank": str(rank)}, max_tokens=5, ignore_eos=True)
        after = settled(four, "vllm:generation_tokens_total")
        assert {n: after[n] - before[n] for n in after} == {n: 15.0 if n == rank else 0.0 for n in after}
    for wrong in ("4", "-1", "two"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            complete(four, {"X-data-parallel-rank": wrong})
        assert refused.value.code == 400 and "0 to 3" in refused.value.read().decode()


def test_the_log_and_metrics_name_each(four):
    for rank in range(4):
        assert four.says(f"(EngineCore_DP{rank} pid=")
    assert four.says("4 replicas ready in ")
    assert counters(four, "baltoro:engine_ready") == {0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0}


def test_a_replica_that_dies_ends_its_own_answers_alone_and_comes_back(four):
    client = four.client(max_retries=0)
    streams = [client.completions.create(model="pocket", prompt=f"Count {i}", max_tokens=400, stream=True, temperature=0,
                                         extra_body={"ignore_eos": True}, extra_headers={"X-data-parallel-rank": str(i % 4)})
               for i in range(8)]
    firsts = [next(stream) for stream in streams]
    assert len(firsts) == 8
    before = engines(four)
    os.kill(before[1], signal.SIGKILL)
    killed = time.monotonic()
    complete(four)  # goes elsewhere
    assert time.monotonic() - killed < 1.5
    assert urllib.request.urlopen(four.url + "/health").status == 200

    def ends(stream):
        count = 0
        try:
            for _ in stream:
                count += 1
        except openai.APIError as error:
            return str(error)
        return count

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        ended = list(pool.map(ends, streams))
    for i, how in enumerate(ended):
        assert ("the engine stopped" in how) if i % 4 == 1 else isinstance(how, int) and how > 100, (i, how)
    wait_for(lambda: engines(four).get(1, before[1]) != before[1] and counters(four, "baltoro:engine_ready")[1] == 1)
    assert complete(four, {"X-data-parallel-rank": "1"})["choices"]
    assert {n: pid for n, pid in engines(four).items() if n != 1} == {n: pid for n, pid in before.items() if n != 1}


def test_what_a_dead_replica_had_not_begun_to_answer_goes_elsewhere(four):
    # Each replica answers 16 at once; the others of these wait.
    with concurrent.futures.ThreadPoolExecutor(200) as pool:
        asked = [pool.submit(complete, four, prompt=f"{i} sheep", max_tokens=60, ignore_eos=True) for i in range(200)]
        wait_for(lambda: counters(four, "vllm:num_requests_waiting")[3] > 20)
        os.kill(engines(four)[3], signal.SIGKILL)
        lost = 0
        for one in asked:
            try:
                assert one.result()["usage"]["completion_tokens"] == 60
            except urllib.error.HTTPError as error:
                assert error.code == 503
                lost += 1
    assert lost <= 16, lost


def test_servers_with_some_of_the_replicas_need_nothing_of_each_other():
    server = Server("--data-parallel-size", "8", "--data-parallel-size-local", "2", "--data-parallel-start-rank", "4",
                    "--max-model-len", "1024", "--kv-cache-memory-bytes", "16M")
    try:
        assert set(engines(server)) == {4, 5} and set(counters(server, "vllm:num_requests_running")) == {4, 5}
        assert complete(server, {"X-data-parallel-rank": "5"})["choices"]
    finally:
        assert server.stop() == 0
    server = Server("--data-parallel-size", "2", "--data-parallel-rank", "1", "--max-model-len", "1024")
    try:
        assert set(counters(server, "vllm:num_requests_running")) == {1}
        assert complete(server)["choices"]
    finally:
        assert server.stop() == 0


def test_a_replica_that_cannot_start_ends_the_server_with_its_reason(tmp_path):
    run = subprocess.run([PROGRAM, "serve", str(tmp_path / "none"), "--port", "0", "--data-parallel-size", "2"], capture_output=True, text=True,
                         timeout=60)
    assert run.returncode == 1 and "none" in run.stderr
