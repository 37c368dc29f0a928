"""--speculative-config with prompt look-up and with both of the pocket model's drafts: every answer is the one without drafts, to the last digit of its log-probabilities,
and where text repeats most of it comes from drafts. BALTORO_LONG=1 tries twice as many kinds of drafts and layouts."""
import concurrent.futures
import json
import os
import random
import subprocess
import urllib.request

import pytest
from conftest import PROGRAM, ROOT, Server, metrics_of

LONG = os.environ.get("BALTORO_LONG") == "1"
MODEL = str(ROOT / "pocket/model")
WORDS = "the sun rose over seven hills and 31 birds sang of rain while we counted 58 stones by the old river".split()
LIST = "\n".join(f"item {i}: {WORDS[i % len(WORDS)]} {WORDS[i * 7 % len(WORDS)]} {i * 3}" for i in range(12))


def ngram(drafts, **more):
    """As many in every step, but where told otherwise."""
    return json.dumps({"method": "ngram", "num_speculative_tokens": drafts, "adaptive": False, **more})


def eagle3(drafts, **more):
    """The draft that is found without a name: that of MLA."""
    return json.dumps({"method": "eagle3", "num_speculative_tokens": drafts, "adaptive": False, **more})


def llama(drafts):
    return json.dumps({"method": "eagle3", "model": str(ROOT / "pocket/draft-llama"), "num_speculative_tokens": drafts, "adaptive": False})


NARROW = ["--max-num-batched-tokens", "64", "--max-num-seqs", "12"]
TIGHT = ["--deterministic", "--max-model-len", "512", "--kv-cache-memory-bytes"]


def post(server, path, body):
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.loads(answer.read(), parse_float=str)  # numbers as they were written


def counters(server):
    out = {}
    for line in metrics_of(server).splitlines():
        if line.startswith("vllm:spec_decode") or line.startswith("vllm:num_preemptions"):
            name, value = line.rsplit(" ", 1)
            out[name.replace('engine="0",model_name="pocket"', "").replace("{}", "").replace("{,", "{")] = float(value)
    return out


def told(answer):
    """What a client got, without what is new each time. Call ids are counted, and so the same."""
    choices = json.loads(json.dumps(answer["choices"]))
    usage = {key: answer["usage"][key] for key in ("prompt_tokens", "completion_tokens")}
    return choices, usage


TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                   "required": ["city", "days"]}}}]
SCHEMA = {"type": "object", "required": ["rows"], "properties": {"rows": {
    "type": "array", "minItems": 4, "maxItems": 6, "items": {
        "type": "object", "required": ["name", "value"], "additionalProperties": False,
        "properties": {"name": {"enum": ["alpha", "beta"]}, "value": {"type": "integer", "maximum": 9, "minimum": 0}}}}}}


def requests():
    draw = random.Random(11)
    for i in range(24):
        words = " ".join(draw.choices(WORDS, k=draw.randint(5, 60)))
        prompt = f"{words}. {words}. {words[:len(words) // 2]}" if i % 3 else words
        body = {"prompt": prompt, "max_tokens": draw.randint(30, 120), "seed": i, "temperature": 0 if i % 2 else 0.8,
                "ignore_eos": i % 4 != 0}
        body |= [{"top_p": 0.9}, {"top_k": 20, "logprobs": 3}, {"presence_penalty": 0.4, "frequency_penalty": 0.2},
                 {"repetition_penalty": 1.1}, {"logit_bias": {"40": 3, "100": -5}}, {"stop": ["seven", "\n\n", "of r"]},
                 {"min_tokens": 25, "stop": [" "]}, {"n": 2, "logprobs": 0, "temperature": 1},
                 {"prompt_logprobs": 0}, {"min_p": 0.05, "return_token_ids": True}][i % 10]
        yield "/v1/completions", body
    for i in range(4):
        user = [{"role": "user", "content": f"What is the weather in Paris over {i + 2} days?"}]
        base = {"messages": user, "seed": i, "temperature": 0 if i % 2 else 0.7, "max_tokens": 150}
        yield "/v1/chat/completions", base
        yield "/v1/chat/completions", base | {"tools": TOOLS, "tool_choice": "required"}
        yield "/v1/chat/completions", base | {"response_format": {
            "type": "json_schema", "json_schema": {"name": "rows", "schema": SCHEMA, "strict": True}}}
        yield "/v1/chat/completions", base | {"thinking_token_budget": 20, "logprobs": True, "top_logprobs": 2}


def ask_all(server, at_once=8):
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda request: told(post(server, *request)), requests()))


@pytest.fixture(scope="module")
def plain():
    server = Server(MODEL, "--served-model-name", "pocket")
    try:
        yield ask_all(server)
        assert not any("spec_decode" in name for name in counters(server))
    finally:
        server.stop()


@pytest.fixture(scope="module")
def plain_with():
    """The answers without drafts of a server with other flags: asked for once, however many kinds of drafts are held to them."""
    known = {}

    def answers(flags):
        if flags not in known:
            server = Server(MODEL, "--served-model-name", "pocket", *flags)
            try:
                known[flags] = ask_all(server)
            finally:
                server.stop()
        return known[flags]

    return answers


# Name and flags, and whether only BALTORO_LONG=1 runs it.
KINDS = [
    ("1", ["-sc", ngram(1, prompt_lookup_min=2)], True),
    ("3", ["-sc", ngram(3, prompt_lookup_min=1, prompt_lookup_max=4)], True),
    ("8-narrow", ["-sc", ngram(8, prompt_lookup_min=1), "--dtype", "bfloat16", *NARROW], False),
    ("4-tight", ["-sc", ngram(4, prompt_lookup_min=1), *TIGHT, "7100000"], False),
    ("4-tp2", ["-sc", ngram(4, prompt_lookup_min=1), "-tp", "2"], True),
    ("4-pp2", ["-sc", ngram(4, prompt_lookup_min=1), "-pp", "2"], True),
    ("6-pp2-adaptive", ["-sc", ngram(6, prompt_lookup_min=1, adaptive=True), "-pp", "2"], False),
    ("model-3", ["-sc", eagle3(3)], True),
    ("model-5-narrow", ["-sc", eagle3(5), *NARROW], True),
    ("model-4-tight", ["-sc", eagle3(4), *TIGHT, "7100000"], False),
    ("model-3-tp2", ["-sc", eagle3(3), "-tp", "2"], False),
    ("model-3-tp2-whole", ["-sc", eagle3(3, draft_tensor_parallel_size=1), "-tp", "2"], True),
    ("model-2-pp2", ["-sc", eagle3(2), "-pp", "2"], False),
    ("model-3-fp8", ["-sc", eagle3(3), "--kv-cache-dtype", "fp8"], True),
    ("model-5-adaptive", ["-sc", eagle3(5, adaptive=True)], False),
    ("llama-3", ["-sc", llama(3)], False),
    ("llama-4-tight", ["-sc", llama(4), *TIGHT, "10100000"], True),
    ("llama-3-tp2", ["-sc", llama(3), "-tp", "2"], False),
    ("llama-3-fp8", ["-sc", llama(3), "--kv-cache-dtype", "fp8"], True)]


@pytest.mark.parametrize("flags", [pytest.param(flags, id=name) for name, flags, long in KINDS if LONG or not long])
def test_every_answer_is_the_one_without(plain, plain_with, flags):
    server = Server(MODEL, "--served-model-name", "pocket", *flags)
    try:
        # Sums over tensor ranks are rounded elsewhere, and another cache too, so these are compared with such servers.
        if "-tp" in flags or "fp8" in flags:
            plain = plain_with(tuple(flags[2:]))
        for request, answer, wanted in zip(requests(), ask_all(server), plain):
            assert answer == wanted, request
        count = counters(server)
        assert count["vllm:spec_decode_num_accepted_tokens_total"] > 50
        if "eagle3" in flags[1] and "-tp" in flags:
            assert ("GiB on each of 2 ranks" in server.text()) == ("draft_tensor_parallel_size" not in flags[1])
        if "--kv-cache-memory-bytes" in flags:
            assert count["vllm:num_preemptions_total"] > 0
    finally:
        server.stop()


def test_context_ranks_have_the_keys_of_a_draft_model():
    """(Where keys lie decides how their parts are rounded, so answers are not compared.)"""
    server = Server(MODEL, "--served-model-name", "pocket", "-sc", eagle3(3), "-tp", "2", "-dcp", "2")
    try:
        for choices, _ in ask_all(server):
            assert choices[0]["finish_reason"] in ("stop", "length", "tool_calls")
        count = counters(server)
        steps = count["vllm:spec_decode_num_drafts_total"]
        assert count['vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"}'] > 0.2 * steps > 50
    finally:
        server.stop()


def test_constrained_answers_are_valid(plain):
    forms = [answer for (_, body), answer in zip(requests(), plain) if "response_format" in body]
    calls = [answer for (_, body), answer in zip(requests(), plain) if "tools" in body]
    assert len(forms) == len(calls) == 4
    for choices, _ in forms:
        if choices[0]["finish_reason"] == "stop":
            assert len(json.loads(choices[0]["message"]["content"])["rows"]) in (4, 5, 6)
    for choices, _ in calls:
        if choices[0]["finish_reason"] == "tool_calls":
            assert json.loads(choices[0]["message"]["tool_calls"][0]["function"]["arguments"]).keys() >= {"city", "days"}


def test_a_text_that_repeats_comes_from_drafts_and_is_counted():
    server = Server(MODEL, "--served-model-name", "pocket", "--speculative-config", ngram(4),
                    env={"VLLM_LOG_STATS_INTERVAL": "1"})
    try:
        prompt = f"{LIST}\n{LIST}\n{LIST}\n"
        body = {"prompt": prompt, "max_tokens": 400, "temperature": 0, "ignore_eos": True}
        whole = post(server, "/v1/completions", body)
        assert whole["usage"]["completion_tokens"] == 400
        count = counters(server)
        drafts, drafted, accepted = (count[f"vllm:spec_decode_num_{name}_total"] for name in
                                     ("drafts", "draft_tokens", "accepted_tokens"))
        assert 0 < accepted <= drafted <= 4 * drafts
        places = [count[f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{at}"}}'] for at in range(4)]
        assert sum(places) == accepted and places == sorted(places, reverse=True)
        assert accepted > 40  # of 400 tokens
        # A streamed answer has the same text, though several tokens come in a piece.
        with server.client() as client:
            pieces = [chunk.choices[0].text for chunk in client.completions.create(
                model="pocket", prompt=prompt, max_tokens=400, temperature=0, stream=True, extra_body={"ignore_eos": True})]
        assert "".join(pieces) == whole["choices"][0]["text"] and len(pieces) < 390
        # The bench reads the same counters.
        shown = subprocess.run(
            [PROGRAM, "bench", "serve", "--base-url", server.url, "--dataset-name", "random", "--random-input-len", "64",
             "--random-output-len", "100", "--num-prompts", "4", "--ignore-eos", "--temperature", "0"],
            capture_output=True, text=True, timeout=300, check=True).stdout
        assert "Speculative Decoding" in shown and "Acceptance length:" in shown
        assert server.says("SpecDecoding metrics: Mean acceptance length: ")
    finally:
        server.stop()


def test_synthetic_acceptance_says_that_answers_mean_nothing():
    server = Server(MODEL, "--served-model-name", "pocket", "-sc", ngram(
        3, prompt_lookup_min=1, rejection_sample_method="synthetic", synthetic_acceptance_length=2))
    try:
        assert server.says("answers are meaningless")
        body = {"prompt": LIST, "max_tokens": 300, "temperature": 0, "ignore_eos": True}
        post(server, "/v1/completions", body)
        count = counters(server)
        assert count["vllm:spec_decode_num_accepted_tokens_total"] == count["vllm:spec_decode_num_drafts_total"] > 20
    finally:
        server.stop()


@pytest.mark.parametrize("config, said", [
    ('{"method": "eagle3", "model": "/d", "num_speculative_tokens": 3}', "--speculative-config: model: /d: no such directory"),
    ('{"method": "eagle3", "num_speculative_tokens": 6}', "expected a whole number from 1 to 5"),
    (json.dumps({"method": "eagle3", "model": MODEL}), "this is no Eagle3 draft"),
    (eagle3(3, draft_tensor_parallel_size=2), "draft_tensor_parallel_size: it is 2, expected 1: one rank has"),
    ('{"method": "ngram"}', "num_speculative_tokens: it is not given"),
    ('{"method": "ngram", "num_speculative_tokens": 3, "tensor_parallel_size": 1}', "'draft_tensor_parallel_size' instead")])
def test_what_cannot_be_is_refused_by_name(config, said):
    ended = subprocess.run([PROGRAM, "serve", MODEL, "--speculative-config", config], capture_output=True, text=True, timeout=60)
    assert ended.returncode != 0 and said in ended.stderr
