"""Commands of the guides that lay a model out over many ranks start here as printed, with ranks on the CPU, and answer
as one rank does. The models that they name are in a Hugging Face cache: the pocket model, widened so that eight ranks
can cut it, in the weight format of the real one."""
import contextlib
import json
import os
import re
import shlex
import subprocess

import pytest

from conftest import PROGRAM, ROOT, Server
from nodes import Head, Node, free_port
from wide_pocket import make_wide_pocket

QUESTIONS = ["What is 3 + 4?", "What is 27 + 58?", "Sort these numbers: 31, 5, 18."]
TEXT = "What is 3 + 4? A number is a word, and a word is a number. " * 4
ONE_RANK = ("-tp", "1", "-pp", "1", "-dcp", "1", "--kv-cache-memory-bytes", "1G")
# Long prompts are cut: a first step of 32,768 tokens takes a small CPU two minutes.
CUT = () if os.environ.get("BALTORO_LONG") else ("--max-num-batched-tokens", "4096")


def printed(guide, name):
    """The words of a command, behind `vllm serve`."""
    text = (ROOT / f"tests/guides/{guide}.txt").read_text()
    command = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", text, re.M | re.S).group(1)
    words = shlex.split(command.replace("\\\n", " "))
    assert words[:2] == ["vllm", "serve"]
    return words[2:]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """No GPU, and a cache with the models."""
    home = tmp_path_factory.mktemp("hf")
    wide = home / "bf16"
    make_wide_pocket(ROOT / "pocket/model", wide)
    for model, weights in (("Kimi-K2-Instruct", "fp8"), ("Kimi-K2-Thinking", "int4")):
        snapshots = home / f"hub/models--moonshotai--{model}/snapshots"
        snapshots.mkdir(parents=True)
        subprocess.run([PROGRAM, "quantize", str(wide), str(snapshots / "1"), "--format", weights], check=True,
                       capture_output=True)
    thinking = home / "hub/models--moonshotai--Kimi-K2-Thinking/snapshots/1"
    return {"HF_HOME": str(home), "CUDA_VISIBLE_DEVICES": "",
            "BALTORO_MODEL_MAP": f"/home/ubuntu/models/Kimi-K2-Thinking={thinking}"}


@contextlib.contextmanager
def serving(words, env):
    server = Server(*words, env=env)
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def serving_on_two_nodes(words, env):
    """The same command on both, as torchrun would start it."""
    env = {**env, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
           "MASTER_PORT": str(free_port())}
    node = Node(*words, env={**env, "RANK": "1"})
    head = Head(*words, env={**env, "RANK": "0"})
    try:
        head.wait_ready(60)
        yield head
        assert head.says("8 of 16 ranks in this process") and node.says("8 of 16 ranks in this process")
    finally:
        head.stop()
        node.stop()


def said(server):
    """Answers of greedy decoding, and log-likelihoods of the tokens of a text."""
    client = server.client()
    model = client.models.list().data[0].id
    assert model in ("moonshotai/Kimi-K2-Instruct", "kimi-k2-thinking")
    answers = [client.chat.completions.create(model=model, messages=[{"role": "user", "content": question}],
                                              temperature=0).choices[0].message.content for question in QUESTIONS]
    scored = client.completions.create(model=model, prompt=TEXT, max_tokens=1, temperature=0,
                                       extra_body={"prompt_logprobs": 0}).choices[0].prompt_logprobs
    return answers, [next(iter(token.values()))["logprob"] for token in scored[1:]]


def expect_alike(got, want):
    assert got[0] == want[0]
    assert "7" in got[0][0] and "85" in got[0][1]
    differences = [abs(a - b) for a, b in zip(got[1], want[1], strict=True)]
    assert len(differences) > 50 and sum(differences) / len(differences) < 0.1


@pytest.fixture(scope="module")
def one_rank(environment):
    """What one rank says with the flags of a command, else as they are."""
    known = {}

    def ask(words):
        if tuple(words) not in known:
            with serving([*words, *ONE_RANK], environment) as server:
                known[tuple(words)] = said(server)
        return known[tuple(words)]
    return ask


def test_k2_fp8_on_sixteen_ranks(environment, one_rank):
    words = printed("k2_fp8", "tp8_pp2")
    with serving(words, environment) as server:
        assert server.says("16 of 16 ranks in this process: tensor 8, pipeline 2, decode context 8")
        expect_alike(said(server), one_rank(words))


def test_the_same_in_chinese_on_two_nodes(environment, one_rank):
    words = printed("k2_fp8_zh", "tp8_pp2")
    with serving_on_two_nodes(words, environment) as server:
        expect_alike(said(server), one_rank(words))


def test_k2_thinking_in_the_configuration_that_worked(environment, one_rank):
    words = printed("k2_thinking_h100", "working_configuration")
    with serving(words, environment) as server:
        expect_alike(said(server), one_rank(words))


def test_k2_thinking_with_all_of_its_length(environment, one_rank):
    """As printed, a rank holds the keys of 262,144 tokens; an eighth of them, in half the bytes, fits."""
    words = [*printed("k2_thinking_h100", "launch_script"), "--kv-cache-memory-bytes", "256M", *CUT]
    refused = Server(*words, env=environment, wait=False)
    assert refused.process.wait(30) == 1
    assert refused.says("(1.12 GiB KV cache is needed, which is larger than the available KV cache memory (0.25 GiB)")
    words += ["-dcp", "8", "--kv-cache-dtype", "fp8"]
    with serving(words, environment) as server:
        assert server.says("262144 tokens of context")
        expect_alike(said(server), one_rank(words))


PAGE = (ROOT / "docs/layouts.md").read_text()
PLANS = re.findall(r"^    \$ baltoro (plan .*)\n((?:    .*\n)+)", PAGE, re.M)


def planned(command):
    ran = subprocess.run([PROGRAM, *shlex.split(command)], capture_output=True, text=True)
    assert ran.returncode == (1 if "does not fit" in ran.stdout else 0), ran.stderr
    return ran.stdout


def test_plans_are_on_the_page_as_they_are_printed():
    assert len(PLANS) == PAGE.count("$ baltoro") >= 6
    for command, shown in PLANS:
        lines = iter(planned(command).splitlines())
        gap = False
        for line in shown.splitlines():
            line = line.removeprefix("    ")
            if line != "...":
                assert line in lines if gap else next(lines, None) == line, f"{command}: {line}"
            gap = line == "..."


def test_the_table_of_caches_is_that_of_the_plans():
    rows = re.findall(r"^\| (.*?) ?\| ([\d,]+) \|$", PAGE, re.M)
    assert len(rows) == 5
    longest = next(command for command, _ in PLANS if "--enforce-eager" in command)
    for flags, tokens in rows:
        plan = planned(longest.replace(" -dcp 8 --kv-cache-dtype fp8", " " + flags.strip("`")))
        assert f"GPU KV cache size: {tokens.replace(',', '')} tokens\n" in plan


def test_the_table_of_replicas_is_that_of_the_plans():
    rows = re.findall(r"^\| `(-[^`]*)` \| ([\d.]+) \| ([\d.]+) \|$", PAGE, re.M)
    assert len(rows) == 4
    many = next(command for command, _ in PLANS if "-dp 16 -dpl 8" in command)
    for flags, of_all, each in rows:
        plan = planned(many.replace("-dp 16 -dpl 8", flags))
        assert plan.startswith(f"Fits: {of_all} requests of 262144 tokens ") and f" replicas ({each} in each)" in plan


CASES = json.loads((ROOT / "tests/guides/cases.json").read_text())["guides"]
SHORT = [(guide["file"], case) for guide in CASES for case in guide["cases"] if "plan" in case]


@pytest.mark.parametrize("guide, case", SHORT, ids=[f"{guide}-{case['id']}" for guide, case in SHORT])
def test_what_is_said_of_memory_is_what_plan_says(guide, case):
    """Of commands that run, but not on the GPUs of the guide's example."""
    words = [word.replace("$MASTER_IP", "10.0.0.1").replace("$PORT", "13345") for word in printed(guide, case["id"])]
    note = case["plan"]
    node = ["--data-parallel-start-rank", "1"] if "head" in case else []
    for gpu, more, code in ((note["gpu"], [], 1), (note["gpu"], [*shlex.split(note["instead"]), *node], 0), (note["fits"], [], 0)):
        ran = subprocess.run([PROGRAM, "plan", *words, "--gpu", gpu, *more], capture_output=True, text=True)
        assert ran.returncode == code, ran.stdout[:600] + ran.stderr
        if code:
            assert f" need {note['missing']} more than " in ran.stdout.splitlines()[0]
            told = ran.stdout.splitlines()[0].split(" devices with ")[1].split(", or ")[0]
            follow = subprocess.run([PROGRAM, "plan", *words, "--gpu", gpu, *told.split()], capture_output=True, text=True)
            assert follow.returncode == 0, follow.stdout[:600] + follow.stderr
