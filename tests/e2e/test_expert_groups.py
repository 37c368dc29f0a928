"""Replicas that share experts: they answer as one rank does, step together, and end and come back as one."""
import concurrent.futures
import json
import os
import re
import signal
import subprocess
import urllib.error
import urllib.request

import openai
import pytest

from conftest import PROGRAM
from nodes import SMALL, Head, Node, engine_of, free_port, wait_for
from test_nodes import PROMPTS, QUESTION, ask_all
from test_replicas import complete, counters, settled


@pytest.fixture(scope="module")
def one_rank():
    head = Head(*SMALL)
    head.wait_ready()
    answers = ask_all(head.client(), PROMPTS)
    head.stop()
    return answers


def group(*flags):
    head = Head(*SMALL, "--enable-expert-parallel", *flags)
    head.wait_ready()
    return head


class TwoNodes:
    """Each with two of four replicas; the flags of the guides."""

    def __init__(self):
        self.flags = [*SMALL, "-ep", "-dp", "4", "-dpl", "2", "-dpa", "127.0.0.1", "-dpp", str(free_port())]
        self.node = self.start_node()
        self.head = Head(*self.flags)
        self.head.wait_ready()

    def start_node(self):
        return Node(*self.flags, "--headless", "-dpr", "2")

    def stop(self):
        self.head.stop()
        self.node.stop()


@pytest.fixture(scope="module")
def two():
    head = group("-dp", "2")
    yield head
    assert head.stop() == 0


@pytest.fixture(scope="module")
def nodes():
    running = TwoNodes()
    yield running
    running.stop()


def pinned(head, rank):
    return head.client(default_headers={"X-data-parallel-rank": str(rank)}, max_retries=0)


def test_two_replicas_answer_as_one_rank(one_rank, two):
    assert ask_all(two.client(), PROMPTS) == one_rank
    for rank in (0, 1):  # while the other has nothing to do
        before = settled(two, "vllm:generation_tokens_total")
        assert ask_all(pinned(two, rank), PROMPTS) == one_rank
        after = settled(two, "vllm:generation_tokens_total")
        assert after[1 - rank] == before[1 - rank] and after[rank] - before[rank] == 24 * len(PROMPTS)
    assert sum(settled(two, "vllm:prefix_cache_hits_total").values()) > 500


def test_each_is_seen_as_a_replica(two):
    assert two.says("2 of 2 ranks in this process: tensor 1, pipeline 1, decode context 1, 2 replicas that share experts")
    assert two.says("2 replicas ready in ")
    assert counters(two, "baltoro:engine_ready") == {0: 1.0, 1: 1.0}
    with pytest.raises(urllib.error.HTTPError) as refused:
        complete(two, {"X-data-parallel-rank": "2"})
    assert refused.value.code == 400 and "0 to 1" in refused.value.read().decode()


@pytest.mark.parametrize("flags", [
    ("-dp", "2", "-tp", "2"), ("-dp", "4", "--expert-placement-strategy", "round_robin"),
    ("-dp", "2", "-tp", "2", "-dcp", "2"),
    ("-dp", "2", "-tp", "2", "-sc", json.dumps({"method": "eagle3", "num_speculative_tokens": 3, "adaptive": False}))],
    ids=["tp2", "dp4", "dcp2", "drafts"])
def test_other_layouts_answer_as_one_rank(one_rank, flags):
    head = group(*flags)
    try:
        assert ask_all(head.client(), PROMPTS) == one_rank
        if "-sc" in flags:
            assert sum(settled(head, "vllm:spec_decode_num_accepted_tokens_total").values()) > 0
    finally:
        assert head.stop() == 0


def how_it_ends(stream):
    try:
        for _ in stream:
            pass
    except openai.APIError as error:
        return str(error)
    return "whole"


def expect_end_and_return(head, kill, one_rank):
    """Streams of all replicas end with an error event, and the group comes back."""
    ranks = sorted(counters(head, "baltoro:engine_ready"))
    streams = [iter(pinned(head, rank).completions.create(**{**QUESTION, "max_tokens": 3000}, stream=True,
                                                          extra_body={"ignore_eos": True})) for rank in ranks]
    for stream in streams:
        next(stream)
    kill()
    with concurrent.futures.ThreadPoolExecutor(len(streams)) as pool:
        ends = list(pool.map(how_it_ends, streams))
    assert all("stopped" in end or "aborted" in end for end in ends), ends
    wait_for(lambda: set(counters(head, "baltoro:engine_ready").values()) == {1.0} and
             counters(head, "baltoro:engine_restarts_total")[0] >= 1, 60, "its return")
    assert ask_all(head.client(), PROMPTS) == one_rank


def test_a_group_ends_and_comes_back_whole(one_rank, two):
    expect_end_and_return(two, lambda: os.kill(engine_of(two.process.pid), signal.SIGKILL), one_rank)


def test_a_group_over_nodes_answers_as_one_rank(one_rank, nodes):
    head = nodes.head
    assert head.says("2 of 4 ranks in this process") and nodes.node.says("2 of 4 ranks in this process")
    assert ask_all(head.client(), PROMPTS) == one_rank
    for rank in range(4):
        assert ask_all(pinned(head, rank), PROMPTS) == one_rank
    generated = settled(head, "vllm:generation_tokens_total")
    assert set(generated) == {0, 1, 2, 3} and all(count >= 24 * len(PROMPTS) for count in generated.values())


def test_answers_with_a_form_come_from_every_replica(one_rank, nodes):
    """Tokens of ranks 2 and 3 are sampled on the node without grammars of its own: the forms travel with the plans."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}, "why": {"type": "string", "maxLength": 12}},
              "required": ["n", "why"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    asked = dict(model="pocket", messages=[{"role": "user", "content": "What is 3 + 4?"}], max_tokens=80, temperature=0)

    def ask(rank, **more):
        choice = pinned(nodes.head, rank).chat.completions.create(**asked, **more, extra_body={
            "chat_template_kwargs": {"thinking": False}}).choices[0]
        return choice.message.content
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        formed = pool.map(lambda i: ask(i % 4, response_format=form), range(12))
        free = pool.map(ask, [2, 3])
        answers = list(formed)
        assert set(answers) == {answers[0]} and isinstance(json.loads(answers[0])["n"], int), answers
        assert all(text != answers[0] for text in free)
    # A tool that must be called, and a pattern, beside requests without a form.
    tool = {"type": "function", "function": {"name": "add", "parameters": {
        "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}}}
    for rank in (0, 3):
        called = pinned(nodes.head, rank).chat.completions.create(**asked, tools=[tool], tool_choice="required")
        call = called.choices[0].message.tool_calls[0].function
        assert call.name == "add" and isinstance(json.loads(call.arguments)["a"], int)
        text = pinned(nodes.head, rank).completions.create(model="pocket", prompt="A number:", max_tokens=20, temperature=0, extra_body={
            "structured_outputs": {"regex": "[0-9]{3}-[a-c]{2}"}}).choices[0].text
        assert re.fullmatch("[0-9]{3}-[a-c]{2}", text), text
    # What may end or go on: the model says when.
    ends = [pinned(nodes.head, rank).chat.completions.create(**asked, extra_body={
        "chat_template_kwargs": {"thinking": False}, "structured_outputs": {"regex": "[0-9]+"}}).choices[0] for rank in (0, 3)]
    assert [one.finish_reason for one in ends] == ["stop", "stop"] and ends[0].message.content == ends[1].message.content, ends
    assert ask_all(pinned(nodes.head, 3), PROMPTS) == one_rank


def test_a_node_that_dies_ends_the_group_until_it_is_back(one_rank, nodes):
    def health():
        with pytest.raises(urllib.error.HTTPError) as away:
            urllib.request.urlopen(nodes.head.url + "/health", timeout=5)
        return json.loads(away.value.read())["engine"]

    def kill():
        os.kill(nodes.node.process.pid, signal.SIGSTOP)  # its door: the engine stays away for now
        os.kill(nodes.node.engine_pid(), signal.SIGKILL)
        wait_for(lambda: nodes.head.says(" ERROR "), 10, "the error")
        told = health()
        assert told["nodes_missing"] == [1] and told["replicas_missing"] == [2, 3], told
        os.kill(nodes.node.process.pid, signal.SIGCONT)
    expect_end_and_return(nodes.head, kill, one_rank)
    errors = [line for line in nodes.head.text().splitlines() if " ERROR " in line]
    assert len(errors) == 1 and "node 1 (127.0.0.1, replicas 2 to 3) closed its connection" in errors[0], errors


@pytest.mark.parametrize("flags,said", [
    (("-pp", "2"), "--pipeline-parallel-size 2"), (("-dpl", "3"), "dealt out evenly"),
    (("--data-parallel-hybrid-lb",), "--data-parallel-hybrid-lb"), (("--load-format", "stand-in"), "has no experts")])
def test_what_a_group_cannot_do_says_so(flags, said):
    ran = subprocess.run([PROGRAM, "serve", "--port", "0", "--device", "cpu", "-ep", "-dp", "4", *flags], capture_output=True,
                         text=True, timeout=60, check=False)
    assert ran.returncode != 0 and said in ran.stderr, ran.stderr
