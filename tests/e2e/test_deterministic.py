"""--deterministic: what a request gets, to the last digit of its log-probabilities, alone and among others."""
import concurrent.futures
import json
import random
import urllib.request

import pytest

from conftest import ROOT, Server, metrics_of

MODEL = str(ROOT / "pocket/model")
WORDS = "the sun rose over seven hills and 31 birds sang of rain while we counted 58 stones by the old river".split()


def ask(server, body):
    request = urllib.request.Request(server.url + "/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        answer = json.loads(answer.read(), parse_float=str)  # numbers as they were written
    (choice,) = answer["choices"]
    return choice["text"], json.dumps(choice["logprobs"]), answer["usage"]


def requests():
    draw = random.Random(5)
    beginnings = [" ".join(draw.choices(WORDS, k=90)) for _ in range(3)]
    for i in range(32):
        words = " ".join(draw.choices(WORDS, k=draw.randint(1, 40)))
        yield {"prompt": f"{beginnings[i % 3]} {words}" if i % 4 else words, "max_tokens": draw.randint(20, 120),
               "temperature": 0 if i % 2 else 0.9, "top_p": 0.95, "seed": i, "logprobs": 3, "ignore_eos": True}


@pytest.fixture(scope="module")
def alone():
    server = Server(MODEL, "--deterministic", "--max-num-seqs", "1", "--no-enable-prefix-caching")
    try:
        yield [ask(server, body)[:2] for body in requests()]
    finally:
        server.stop()


# With the smaller cache some requests lose their blocks on the way.
@pytest.mark.parametrize("flags", [[], ["--max-model-len", "512", "--kv-cache-memory-bytes", "7100000"]],
                         ids=["room", "preempted"])
def test_sixteen_at_once_get_what_each_gets_alone(alone, flags):
    server = Server(MODEL, "--deterministic", "--max-num-seqs", "16", *flags)
    try:
        bodies = list(requests())
        order = list(range(len(bodies)))
        for turn in range(2):  # the second time much is found in the cache
            random.Random(turn).shuffle(order)
            with concurrent.futures.ThreadPoolExecutor(16) as pool:
                answers = list(pool.map(lambda i: ask(server, bodies[i])[:2], order))
            for i, answer in zip(order, answers):
                assert answer == alone[i], bodies[i]
        metrics = metrics_of(server)
        if flags:
            preemptions = [line for line in metrics.splitlines() if line.startswith("vllm:num_preemptions_total")]
            assert float(preemptions[0].split()[-1]) > 0
    finally:
        server.stop()


def test_a_prompt_with_an_answer_in_the_cache_gets_what_it_gets_without():
    server = Server(MODEL, "--deterministic")
    try:
        prompt = [ord(letter) for letter in " ".join(WORDS * 2)]  # any tokens do
        first = {"prompt": prompt, "max_tokens": 200, "temperature": 0, "logprobs": 3, "ignore_eos": True}
        _, logprobs, _ = ask(server, first | {"return_tokens_as_token_ids": True})
        answer = [int(token.split(":")[1]) for token in json.loads(logprobs)["tokens"]]
        second = first | {"prompt": prompt + answer + prompt[:9], "max_tokens": 50}
        *cached, there = ask(server, second)
        *computed, new = ask(server, second | {"cache_salt": "nobody else's"})
        assert there["prompt_tokens_details"]["cached_tokens"] == len(prompt) // 64 * 64
        assert not (new.get("prompt_tokens_details") or {}).get("cached_tokens")
        assert cached == computed
    finally:
        server.stop()
