"""A model with random weights would write anything, so whatever it gets right is the grammar's work: every finished tool
call and every structured answer is held against Python's jsonschema, over the schemas of tests/grammar/schemas. Once more with
drafts, by look-up and by a draft model that is random as well: the answers must be valid, and those of the same length limit the same.

BALTORO_LONG=1 makes 10,000 calls, half as many with each kind of drafts, and 10,000 structured answers."""
import concurrent.futures
import gzip
import json
import os
import random
import re
import shutil
import urllib.error
import urllib.request

import jsonschema
import pytest

from conftest import ROOT, Server, metrics_of
from random_draft import make_random_draft

LONG = os.environ.get("BALTORO_LONG") == "1"
CALLS = 10_000 if LONG else 50
MAX_TOKENS = 4000 if LONG else 1500
MAX_TOKENS_OF_MANY = 600  # with drafts: the few answers that go on for thousands of tokens take most of the time
DIALECTS = {"draft4": jsonschema.Draft4Validator, "draft7": jsonschema.Draft7Validator}


class Case:
    def __init__(self, name, schema):
        self.name = name
        self.schema = schema
        self.validator = DIALECTS.get(name.split("/")[0], jsonschema.Draft202012Validator)(schema)

    def is_valid(self, text):
        return self.validator.is_valid(json.loads(text))


def load_cases():
    cases = []
    for path in sorted((ROOT / "tests/grammar/schemas").iterdir()):
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_text()
        cases += [Case(case["name"], case["schema"]) for case in json.loads(text)]
    return cases


@pytest.fixture(scope="module")
def random_model(tmp_path_factory):
    """A model of the pocket model's vocabulary and template, of two small layers, whose weights are random; and its draft."""
    folder = tmp_path_factory.mktemp("random")
    for name in ("tiktoken.model", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(ROOT / "pocket/model" / name, folder)
    config = json.loads((ROOT / "pocket/model/config.json").read_text())
    del config["vision_config"]
    config["text_config"].update(hidden_size=64, intermediate_size=128, moe_intermediate_size=32, num_hidden_layers=2,
                                 n_routed_experts=4, num_experts_per_tok=2, num_attention_heads=2,
                                 num_key_value_heads=2, q_lora_rank=32, max_position_embeddings=16384)
    config["text_config"]["rope_scaling"] = None
    (folder / "config.json").write_text(json.dumps(config))
    make_random_draft(folder / "draft", config["text_config"], [0, 1], folder / "tiktoken.model")
    return folder


@pytest.fixture(scope="module", params=["no drafts", "ngram", "eagle3"])
def random_server(random_model, request):
    drafts = {"no drafts": {}, "ngram": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "adaptive": False},
              "eagle3": {"method": "eagle3", "model": str(random_model / "draft"), "num_speculative_tokens": 3, "adaptive": False}}[request.param]
    running = Server(str(random_model), "--load-format", "dummy", "--max-num-seqs", "64", "-sc", json.dumps(drafts))
    running.drafts = request.param
    running.max_tokens = MAX_TOKENS_OF_MANY if LONG and drafts else MAX_TOKENS
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def known():
    """Answers by what was asked, of the server that was asked first, which has no drafts."""
    return {}


def history(earlier):
    """A conversation in which `earlier` calls were made."""
    messages = [{"role": "user", "content": "Go."}]
    for i in range(earlier):
        call = {"id": f"call-{i}", "type": "function", "function": {"name": "old", "arguments": "{}"}}
        messages += [{"role": "assistant", "content": None, "tool_calls": [call]},
                     {"role": "tool", "tool_call_id": f"call-{i}", "content": "done"}]
    return messages


def post(url, path, body):
    """Status, headers, and the body as text."""
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=3000 if LONG else 300) as response:
            return response.status, response.headers, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


def streamed(url, body):
    """The message that the chunks of a stream join to, and its finish reason."""
    message = {"content": "", "reasoning": "", "calls": []}
    finish = None
    status, _, text = post(url, "/v1/chat/completions", {**body, "stream": True})
    assert status == 200, text
    events = text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    for event in events[:-2]:
        chunk = json.loads(event.removeprefix("data: "))
        assert "error" not in chunk, chunk
        choice = chunk["choices"][0]
        finish = choice["finish_reason"] or finish
        delta = choice["delta"]
        message["content"] += delta.get("content") or ""
        message["reasoning"] += delta.get("reasoning") or ""
        for call in delta.get("tool_calls", []):
            if "id" in call:
                assert call["index"] == len(message["calls"])
                message["calls"].append([call["id"], call["function"]["name"], ""])
            message["calls"][call["index"]][2] += call["function"]["arguments"]
    return message, finish


def whole(text):
    choice = json.loads(text)["choices"][0]
    message = choice["message"]
    calls = [[call["id"], call["function"]["name"], call["function"]["arguments"]] for call in message["tool_calls"]]
    return {"content": message["content"] or "", "reasoning": message["reasoning"] or "",
            "calls": calls}, choice["finish_reason"]


def ask(server, body, known):
    """None for a refused request, else message, finish reason and what the answer says is not enforced."""
    question = json.dumps(body)
    if server.drafts != "no drafts" and body["seed"] % 2 and question in known:
        # Every other answer of a server with drafts is streamed alone.
        assert streamed(server.url, body) == known[question][:2], body
        return known[question]
    status, headers, text = post(server.url, "/v1/chat/completions", body)
    if status == 400:
        error = json.loads(text)["error"]
        assert error["param"] in ("tools", "response_format"), error
        assert re.match(r"(tools\[\d+\]|response_format)", error["message"]), error
        return None
    assert status == 200, text
    message, finish = whole(text)
    if server.drafts == "no drafts":
        assert streamed(server.url, body) == (message, finish), body
    answer = message, finish, headers.get("x-baltoro-unchecked", "")
    assert known.setdefault(question, answer) == answer, body
    return answer


def run_all(jobs):
    results = []
    with concurrent.futures.ThreadPoolExecutor(32 if LONG else 16) as pool:
        for result in pool.map(lambda job: job(), jobs):
            results.append(result)
            if len(results) % 500 == 0:
                print(len(results), "of", len(jobs), flush=True)
    return results


class Tokens:
    """The tokens that the tests make likelier: by itself a random model closes a string after hundreds of tokens, and
    hardly ever hits the one token that begins a section of tools."""

    def __init__(self, url):
        self.quote = json.loads(post(url, "/tokenize", {"prompt": '"'})[2])["tokens"][0]
        call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        rendered = json.loads(post(url, "/tokenize", {
            "messages": [{"role": "assistant", "content": "", "tool_calls": [call]}],
            "add_generation_prompt": False, "return_token_strs": True})[2])
        self.section_begin = rendered["tokens"][rendered["token_strs"].index("<|tool_calls_section_begin|>")]


def check_calls(server, cases, tokens, seed, known):
    """One request with tools. Returns (finished calls, cut, refused, used schemas, unchecked)."""
    dice = random.Random(seed)
    chosen = dice.sample(cases, dice.randint(1, 3))
    strict = dice.random() < 0.5
    names = [f"{dice.choice(['get', 'do.it', 'a-b', 'search_'])}{i}" for i in range(len(chosen))]
    tools = [{"type": "function", "function": {"name": name, "parameters": case.schema, "strict": strict}}
             for name, case in zip(names, chosen)]
    earlier = dice.randint(0, 3)
    thinking = dice.random() < 0.3
    body = {"messages": history(earlier), "tools": tools, "max_completion_tokens": server.max_tokens, "seed": seed,
            "chat_template_kwargs": {"thinking": thinking}, "thinking_token_budget": dice.randint(0, 5),
            "parallel_tool_calls": dice.random() < 0.3, "logit_bias": {str(tokens.quote): 5}}
    mode = dice.choice(["required", "named", "auto"])
    body["tool_choice"] = mode
    if mode == "named":
        body["tool_choice"] = {"type": "function", "function": {"name": names[0]}}
    if mode == "auto":
        body["logit_bias"][str(tokens.section_begin)] = 100
    answer = ask(server, body, known)
    if answer is None:
        return 0, 0, 1, set(), 0
    message, finish, unchecked = answer
    if not thinking:
        assert message["reasoning"] == ""
    assert message["content"] == ""
    used = set()
    for i, (call_id, name, arguments) in enumerate(message["calls"]):
        assert name in names
        assert mode != "named" or name == names[0]
        assert call_id == f"functions.{name}:{earlier + i}"
        if finish == "length" and i + 1 == len(message["calls"]):
            continue  # cut off
        case = chosen[names.index(name)]
        assert isinstance(json.loads(arguments), dict)
        if f"tools[{names.index(name)}]" not in unchecked:
            assert case.is_valid(arguments), (case.name, case.schema, arguments)
        used.add(case.name)
    if finish == "length":
        return max(len(message["calls"]) - 1, 0), 1, 0, used, bool(unchecked)
    assert finish == ("stop" if mode == "named" else "tool_calls")
    assert len(message["calls"]) >= 1
    assert body["parallel_tool_calls"] or len(message["calls"]) == 1
    return len(message["calls"]), 0, 0, used, bool(unchecked)


def check_form(server, case, tokens, seed, known):
    """One request with response_format. Returns (finished, cut, refused, used schemas)."""
    body = {"messages": history(0), "max_completion_tokens": MAX_TOKENS, "seed": seed, "thinking_token_budget": 0,
            "logit_bias": {str(tokens.quote): 5},
            "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": case.schema}}}
    answer = ask(server, body, known)
    if answer is None:
        return 0, 0, 1, set()
    message, finish, unchecked = answer
    assert message["calls"] == [] and unchecked == ""
    if finish == "length":
        return 0, 1, 0, set()
    assert finish == "stop"
    assert case.is_valid(message["content"]), (case.name, case.schema, message["content"])
    return 1, 0, 0, {case.name}


def callable_cases(cases):
    """Those whose schema can be one of an object."""
    return [case for case in cases
            if isinstance(case.schema, dict) and case.schema.get("type", "object") == "object"]


def summary(kind, results):
    finished, cut, refused = (sum(result[i] for result in results) for i in range(3))
    used = set().union(*(result[3] for result in results))
    print(f"{kind}: {finished} finished over {len(used)} schemas, {cut} cut off, {refused} requests refused")
    return finished, cut, refused, used


def accepted(server):
    """Tokens of drafts."""
    text = metrics_of(server)
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
               if line.startswith("vllm:spec_decode_num_accepted_tokens_total{"))


def test_every_finished_tool_call_is_valid(random_server, known):
    calls = CALLS if random_server.drafts == "no drafts" else CALLS // 2
    cases = callable_cases(load_cases())
    tokens = Tokens(random_server.url)
    jobs = [lambda seed=seed: check_calls(random_server, cases, tokens, seed, known) for seed in range(calls)]
    results = run_all(jobs)
    finished, cut, refused, used = summary(f"tool calls, {random_server.drafts}", results)
    print("not wholly enforced:", sum(result[4] for result in results), " tokens from drafts:", accepted(random_server))
    assert finished >= calls / 2
    assert cut <= (0.05 if random_server.max_tokens == MAX_TOKENS else 0.2) * (finished + cut)
    assert not LONG or len(used) >= 200
    assert random_server.drafts == "no drafts" or accepted(random_server) > calls / 2


@pytest.mark.parametrize("random_server", ["no drafts"], indirect=True)
def test_every_finished_structured_answer_is_valid(random_server, known):
    cases = load_cases()
    tokens = Tokens(random_server.url)
    dice = random.Random(1)
    chosen = [cases[i % len(cases)] for i in range(CALLS)] if LONG else dice.sample(cases, CALLS)
    jobs = [lambda seed=seed, case=case: check_form(random_server, case, tokens, seed, known) for seed, case in enumerate(chosen)]
    finished, cut, refused, used = summary("structured answers", run_all(jobs))
    assert finished >= CALLS / 3
    assert cut <= 0.05 * (finished + cut)
    assert not LONG or len(used) >= 200
