"""A draft model that is broken, slow, or gone with its rank: a request gets the answer that it gets without drafts, or an error,
and never another text."""
import concurrent.futures
import json
import os
import shutil
import signal
import threading
import urllib.request

import numpy
import openai
import pytest
from conftest import ROOT, Server, metrics_of
from nodes import Cluster, wait_for
from random_draft import random_draft, write_draft
from wide_pocket import read_safetensors, write_safetensors

MODEL = str(ROOT / "pocket/model")
DRAFT = ROOT / "pocket/draft-mla"
NAN, INFINITY = 0x7fc0, 0x7f80  # of bfloat16
PROMPTS = ["Hello", "What is 3 + 4?", "Count to ten.", "1, 2, 3,", "Who are you?", "A number is a word, " * 12]


def drafts(model, count=3):
    return json.dumps({"method": "eagle3", "model": str(model), "num_speculative_tokens": count, "adaptive": False})


def ask(server, prompt):
    """The tokens and log-probabilities of an answer, as they were written."""
    body = {"model": "pocket", "prompt": prompt, "max_tokens": 40, "temperature": 0.7, "seed": 5, "ignore_eos": True, "logprobs": 1}
    request = urllib.request.Request(server.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.loads(answer.read(), parse_float=str)["choices"]


def ask_all(server):
    with concurrent.futures.ThreadPoolExecutor(len(PROMPTS)) as pool:
        return list(pool.map(lambda prompt: ask(server, prompt), PROMPTS))


def counter(server, name):
    text = metrics_of(server)
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name + "{"))


def serve(*flags):
    return Server(MODEL, "--served-model-name", "pocket", "--device", "cpu", *flags)


@pytest.fixture(scope="module")
def plain():
    server = serve()
    try:
        yield ask_all(server)
    finally:
        server.stop()


def changed_draft(folder, change):
    """The pocket model's draft, but for what `change` does to its tensors, by name."""
    folder.mkdir()
    shutil.copy(DRAFT / "config.json", folder)
    tensors = {name: (kind, values.copy()) for name, kind, values in read_safetensors(DRAFT / "model.safetensors")}
    change(tensors)
    write_safetensors(folder / "model.safetensors", [(name, kind, values) for name, (kind, values) in tensors.items()])
    return folder


def first_of(tensors, name):
    return next(key for key in tensors if key.endswith(name))


# Whole matrices, a column of one, a row of the head (one logit of all).
@pytest.mark.parametrize("name, where, value", [
    ("fc.weight", numpy.s_[:], NAN), ("fc.weight", numpy.s_[:, 7], INFINITY), ("lm_head.weight", numpy.s_[5], NAN),
    ("hidden_norm.weight", numpy.s_[:], NAN), ("kv_a_proj_with_mqa.weight", numpy.s_[3], INFINITY)])
def test_numbers_that_are_none_are_no_drafts(plain, tmp_path, name, where, value):
    def change(tensors):
        tensors[first_of(tensors, name)][1][where] = value
    server = serve("-sc", drafts(changed_draft(tmp_path / "draft", change)))
    try:
        assert ask_all(server) == plain
        assert ask_all(server) == plain  # with blocks in which such keys were
        assert counter(server, "vllm:spec_decode_num_draft_tokens_total") == 0
    finally:
        server.stop()


def test_a_token_outside_of_the_vocabulary_ends_the_start(tmp_path):
    def change(tensors):
        tensors[first_of(tensors, "d2t")][1][9] = 5000
    server = Server(MODEL, "-sc", drafts(changed_draft(tmp_path / "draft", change)), wait=False)
    assert server.process.wait(60) == 1
    assert server.says("d2t[9] is 5000, which leads out of the vocabulary of 2304 tokens; give another")


def test_a_file_that_is_cut_off_ends_the_start(tmp_path):
    folder = changed_draft(tmp_path / "draft", lambda tensors: None)
    with open(folder / "model.safetensors", "r+b") as file:
        file.truncate(1_000_000)
    server = Server(MODEL, "-sc", drafts(folder), wait=False)
    assert server.process.wait(60) == 1
    assert server.says("--speculative-config: the draft model cannot be used")


def test_a_draft_that_is_slow_delays_and_changes_nothing(plain, tmp_path):
    """With many times the weights of its model."""
    target = json.loads((ROOT / "pocket/model/config.json").read_text())["text_config"]
    config, weights = random_draft(target, [0, 1, 2], intermediate_size=50_000)
    write_draft(tmp_path / "draft", config, weights)
    server = serve("-sc", drafts(tmp_path / "draft", 5), "--max-num-batched-tokens", "256", "--max-num-seqs", "8")
    over = threading.Event()
    seen = []

    def watch():
        while not over.wait(0.1):
            with urllib.request.urlopen(server.url + "/health", timeout=10) as answer:
                seen.append(answer.status)
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        # Who goes away leaves nobody waiting.
        stream = server.client(max_retries=0).completions.create(
            model="pocket", prompt="Hello", max_tokens=5000, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        assert ask_all(server) == plain
        assert counter(server, "vllm:spec_decode_num_draft_tokens_total") > 100
        wait_for(lambda: counter(server, "vllm:num_requests_running") == 0, 20, "the request whose client went away")
    finally:
        over.set()
        watcher.join()
        server.stop()
    assert set(seen) == {200}


STORY = dict(model="pocket", messages=[{"role": "user", "content": "What is 27 + 58?"}], max_tokens=200, temperature=0,
             extra_body={"ignore_eos": True})


def text_of(part):
    """Of a message, or of a piece of one."""
    return (getattr(part, "reasoning_content", None) or "") + (part.content or "")


@pytest.mark.parametrize("flags", [("-tp", "2"), ("-pp", "2")], ids=["tp2", "pp2"])
@pytest.mark.parametrize("victim", ["the rank with the draft", "another rank"])
def test_a_rank_that_dies_leaves_no_wrong_text(flags, victim):
    """The head's rank samples, and so has the draft."""
    with Cluster(2, *flags, "-sc", drafts(DRAFT)) as cluster:
        client = cluster.head.client(max_retries=0)
        whole = text_of(client.chat.completions.create(**STORY).choices[0].message)
        assert counter(cluster.head, "vllm:spec_decode_num_accepted_tokens_total") > 50
        texts, failed = [""] * 3, []

        def read(number):
            try:
                for chunk in client.chat.completions.create(**STORY, stream=True):
                    texts[number] += text_of(chunk.choices[0].delta)
            except openai.APIError:
                failed.append(number)
        readers = [threading.Thread(target=read, args=(number,)) for number in range(3)]
        for reader in readers:
            reader.start()
        wait_for(lambda: all(texts), 60, "first tokens")
        engine = cluster.head.engine_pid()
        os.kill(engine if victim == "the rank with the draft" else cluster.nodes[1].engine_pid(), signal.SIGKILL)
        for reader in readers:
            reader.join(30)
        assert failed and all(whole.startswith(text) for text in texts)
        assert all(number in failed or text == whole for number, text in enumerate(texts))
        wait_for(lambda: cluster.health() == 200 and cluster.head.engine_pid() not in (None, engine), 60, "the engine")
        assert text_of(client.chat.completions.create(**STORY).choices[0].message) == whole
