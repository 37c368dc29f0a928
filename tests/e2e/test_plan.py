"""`baltoro plan` says what `baltoro serve` does: every flag of the table, with values that are taken, odd and refused,
through both, over the pocket model and one of another weight format. The exit code and the sentence are the same."""
import concurrent.futures
import json
import os
import re
import signal
import subprocess
import tempfile
import time

import pytest

from conftest import PROGRAM, ROOT

LONG = os.environ.get("BALTORO_LONG") == "1"  # all values of each flag; otherwise the last
CPU = ("--device", "cpu")
# Several servers start at once; what follows on the command line goes before it.
SMALL = (*CPU, "--kv-cache-memory-bytes", "64M", "--max-model-len", "1024")
# Without these a server would take the flag for a place of its own.
DOOR = ("--host", "127.0.0.1", "--port", "0")


def table():
    """Rows of `serve` in docs/flags.md, which a unit test compares with the program: flag, shape of its value, default,
    and what it does today."""
    page = (ROOT / "docs/flags.md").read_text()
    serve = page[page.index("## baltoro serve"):page.index("### Environment")]
    cell = r"(?:[^|\\]|\\.)*?"
    rows = re.findall(rf"^\| `--([a-z0-9-]+)({cell})` \| ({cell}) \| ({cell}) \| {cell} \| ({cell}) \|$", serve, re.M)
    assert len(rows) > 150
    return [(name, "--no-" in others, shape.strip("`").replace("\\|", "|"), initial.strip("`"), today)
            for name, others, shape, initial, today in rows]


# Paths: what is there, and what is not.
PATHS = {"tokenizer": str(ROOT / "pocket/model"), "chat-template": str(ROOT / "pocket/model/chat_template.jinja"),
         "generation-config": str(ROOT / "pocket/model")}
# A million of them would be tried at start.
STEPS = {"max-num-seqs", "max-num-batched-tokens"}
# Both would do as they are told, which is not what is compared here.
LEFT_OUT = {"host", "port", "uds", "device", "model", "config", "headless", "engine-in-process"}


def values(name, negatable, shape, initial):
    """Words behind the flag: of the kind that it takes, the largest and smallest, and of another kind."""
    if name in PATHS:
        return [[PATHS[name]], ["/nowhere/at/all"]]
    if not shape:
        return [[], ["7"]] + ([["no"]] if negatable else [])
    if shape.startswith("{"):
        choices = shape.strip("{}").split("|")
        return [[choices[0]], [choices[-1]], ["nonsense"]]
    if name in STEPS:
        return [["1"], ["3000"], ["3000000"], ["nonsense"]]
    return [["1"], [initial] if re.fullmatch(r"[\d.]+", initial) else ["3"], ["1000000"], ["nonsense"], ['{"a":1}']]


def lines_of(name, negatable, shape, initial, today):
    for words in values(name, negatable, shape, initial):
        yield [f"--no-{name}"] if words == ["no"] else [f"--{name}", *words]


def is_idle(row):
    return row[4].startswith(("No effect here", "Ignored"))


PAIRS = [
    ["--enable-eplb", "-ep", "-tp", "2"], ["-tp", "3"], ["-tp", "2", "-dcp", "2"], ["-tp", "2", "-dcp", "2", "--deterministic"],
    ["-pp", "99"], ["-tp", "2", "-ep", "--expert-placement-strategy", "round_robin"],
    ["--max-num-seqs", "8", "--max-num-batched-tokens", "4"], ["--kv-cache-dtype", "fp8", "--calculate-kv-scales"],
    ["--kv-cache-dtype", "fp8", "--quantization-param-path", "/nowhere"],
    ["--calculate-kv-scales", "--quantization-param-path", "/nowhere"], ["--max-model-len", "2k", "--kv-cache-memory-bytes", "64k"],
    ["--dtype", "float32", "--kv-cache-dtype", "fp8"], ["--load-format", "dummy", "--quantization", "fp8"],
    ["--load-format", "dummy", "--quantization", "nonsense"], ["--nnodes", "2", "-pp", "2"],
    ["--nnodes", "2", "-pp", "2", "--master-addr", "10.9.8.7"], ["--data-parallel-size", "2", "--data-parallel-size-local", "3"],
    ["--speculative-config", '{"method":"eagle3"}'], ["--speculative-config.method", "eagle3"], ["--spec", "{}"], ["--max", "3"],
    ["--generation-config", "vllm", "--override-generation-config", '{"temperature":-1}'], ["--api-key-file", "/nowhere"],
    ["--kv-cache-memory-bytes", "900G"], ["--max-num-seqs", "5000"], ["-tp", "2", "--nnodes", "2", "--node-rank", "2"]]

FORMS = [["-q", "fp8"], ["-q", "compressed-tensors"], ["-q", "ascend"], ["-q", "none"], ["-q", "auto"], ["-q", "awq"],
         ["--online-quantization", "fp8"], ["-tp", "2"], ["-tp", "16"], ["--kv-cache-dtype", "fp8_ds_mla"]]


def said(text):
    """The sentence, without who says it, and without numbers of free memory, which change."""
    text = re.sub(r"^usage: .*\n", "", text, flags=re.M)
    text = re.sub(r"^baltoro (serve|plan): (error: )?|^Does not fit: ", "", text, flags=re.M)
    text = re.sub(r"^\(.*? pid=\d+\) ERROR \S+ \S+ \[\S+\] ", "", text, flags=re.M)
    text = text.replace("\\n", "\n")
    return re.sub(r"\d+(\.\d+)?", "N", text).strip()


def planned(words):
    ran = subprocess.run([PROGRAM, "plan", *words], capture_output=True, text=True, timeout=60)
    if ran.returncode == 0:
        assert ran.stdout.startswith("Fits: "), ran.stdout
        return 0, ""
    if ran.stdout:
        return ran.returncode, said(ran.stdout.splitlines()[0])
    return ran.returncode, said(ran.stderr)


def served(words):
    """0 for a server that comes up; it is ended at once."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen([PROGRAM, "serve", *words, *DOOR], stdout=subprocess.DEVNULL, stderr=log)
        end = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < end:
            log.seek(0)
            if "Ready: " in log.read():
                process.send_signal(signal.SIGKILL)
                process.wait()
                return 0, ""
            time.sleep(0.02)
        process.kill()
        process.wait()
        log.seek(0)
        text = log.read()
    errors = [line for line in text.splitlines() if not re.match(r"\(.*?\) (INFO|WARNING)", line)]
    return process.returncode, said("\n".join(errors))


def compare(words):
    plan, serve = planned(words), served(words)
    if plan[0] != serve[0]:
        return f"{' '.join(words)}\n  plan  {plan}\n  serve {serve}"
    if plan[1] not in serve[1] and serve[1] not in plan[1]:
        return f"{' '.join(words)}\n  plan  {plan[1]}\n  serve {serve[1]}"
    return None


def compare_all(commands):
    with concurrent.futures.ThreadPoolExecutor(max(2, min(8, os.cpu_count() or 2))) as pool:
        wrong = [found for found in pool.map(compare, commands) if found]
    assert not wrong, f"{len(wrong)} of {len(commands)}:\n" + "\n".join(wrong)


def test_every_flag():
    rows = [row for row in table() if row[0] not in LEFT_OUT]
    of_flags = [list(lines_of(*row)) for row in rows if not is_idle(row)]
    commands = [[*SMALL, *line] for lines in of_flags for line in (lines if LONG else lines[-1:])]
    assert len(commands) > (400 if LONG else 100)
    compare_all(commands)


def test_flags_without_effect():
    """Together where they are taken, since each costs the start of a server; one by one where they are refused."""
    idle = [row for row in table() if is_idle(row) and row[0] not in LEFT_OUT]
    taken, refused = list(SMALL), []
    for row in idle:
        for at, line in enumerate(lines_of(*row)):
            if planned([*SMALL, *line])[0] != 0:
                refused.append([*SMALL, *line])
            elif at == 0:
                taken += line
    assert len(idle) > 80 and len(refused) > 100 and planned(taken)[0] == 0
    compare_all([taken, *refused])


def test_pairs():
    compare_all([[*CPU, *pair] for pair in PAIRS])


@pytest.fixture(scope="module")
def int4(tmp_path_factory):
    target = tmp_path_factory.mktemp("forms") / "int4"
    subprocess.run([PROGRAM, "quantize", str(ROOT / "pocket/model"), str(target), "--format", "int4"], check=True,
                   capture_output=True)
    return str(target)


def test_weight_forms(int4):
    compare_all([[model, *CPU, *form] for model in (int4, str(ROOT / "pocket/model")) for form in FORMS])


@pytest.mark.parametrize("words, sentence", [
    (["--quantization", "fp8"], "--quantization is fp8, but Kimi-K2-Thinking says compressed-tensors"),
    (["--deterministic", "--speculative-config", '{"method":"ngram","num_speculative_tokens":32}'], "num_speculative_tokens of at most 31"),
    (["--cpu-offload-gb", "8"], "--cpu-offload-gb 8 is not available yet"),
    (["--dtype", "float32"], "--dtype float32 is computed by CPUs alone"),
    (["--gpu", "rtx"], "--gpu rtx: not known")])
def test_what_is_refused_of_a_model_that_is_only_known(words, sentence):
    ran = subprocess.run([PROGRAM, "plan", "Kimi-K2-Thinking", "-tp", "8", *words], capture_output=True, text=True)
    assert ran.returncode == 1 and sentence in ran.stderr and ran.stdout == ""
    ran = subprocess.run([PROGRAM, "plan", "Kimi-K2-Thinking", "-tp", "8", *words, "--json"], capture_output=True, text=True)
    told = json.loads(ran.stdout)
    assert ran.returncode == 1 and told["verdict"] == "refused" and sentence in told["reason"]


def test_nodes_elsewhere_are_planned_without_their_secret():
    words = ["-dp", "16", "-dpl", "8", "--data-parallel-address", "10.0.0.1", "--data-parallel-rpc-port", "13345", "-ep"]
    known = subprocess.run([PROGRAM, "plan", "Kimi-K2-Instruct", *words], capture_output=True, text=True)
    assert known.returncode == 0 and known.stdout.startswith("Fits"), known
    assert "serve wants one thing more" in known.stderr and "--cluster-key-file" in known.stderr
    here = subprocess.run([PROGRAM, "plan", str(ROOT / "pocket/model"), *CPU, *words], capture_output=True, text=True)
    assert here.returncode == 1 and "--cluster-key-file" in here.stderr


def test_json_has_what_the_text_has():
    words = [PROGRAM, "plan", "Kimi-K2-Thinking", "-tp", "8", "--gpu", "h100-80g", "--max-num-seqs", "4", "--trust-remote-code"]
    text = subprocess.run(words, capture_output=True, text=True)
    ran = subprocess.run([*words, "--json"], capture_output=True, text=True)
    assert ran.returncode == text.returncode
    plan = json.loads(ran.stdout)
    assert text.stdout.splitlines()[0].endswith(plan["reason"])
    assert plan["verdict"] == ("fits" if ran.returncode == 0 else "does not fit")
    assert plan["ranks"] == 8 and plan["device"]["name"] == "h100-80g" and not plan["weights_are_here"]
    assert f"GPU KV cache size: {plan['kv_cache_tokens']} tokens" in text.stdout
    for part in plan["stages"][0]["weights"]["parts"] + plan["stages"][0]["arenas"]["parts"]:
        assert f"{part['name']:<34}{part['bytes'] / 2**30:>8.2f} GiB" in text.stdout
    for one in plan["concurrency"]:
        assert f"Maximum concurrency for {one['tokens']} tokens per request: {one['requests']:.2f}x" in text.stdout
    for one in plan["demands"]:
        if not one["fits"]:
            assert " ".join(one["fits_with"]) in text.stdout
    assert plan["notices"] == text.stderr.splitlines() and "--trust-remote-code" in plan["notices"][0]


@pytest.mark.parametrize("words, replicas, ranks", [(["-tp", "2", "-dp", "2"], 2, 4), (["-dp", "4", "-ep"], 4, 4), (["-tp", "2"], 1, 2)])
def test_several_replicas_are_counted_in_all_and_in_each(words, replicas, ranks):
    """Whether they share experts or nothing. The same numbers in the verdict, the plan and the JSON."""
    words = [PROGRAM, "plan", *SMALL, *words, "--lengths", "512"]
    text = subprocess.run(words, capture_output=True, text=True)
    assert text.returncode == 0 and text.stderr == "", text.stderr
    plan = json.loads(subprocess.run([*words, "--json"], capture_output=True, text=True).stdout)
    assert (plan["data_parallel_size"], plan["ranks"]) == (replicas, ranks) and plan["expert_balance"] is False
    each, of_all = plan["concurrency"][0]["requests"], plan["concurrency"][0]["requests_in_all"]
    assert of_all == pytest.approx(replicas * each)
    verdict = text.stdout.splitlines()[0]
    assert (f" in {replicas} replicas (" in verdict) == (f"x in each of {replicas} replicas, {of_all:.2f}x in all\n" in text.stdout) == (replicas > 1)
    assert plan["reason"] == verdict and f" on {ranks} x this machine" in text.stdout


def test_every_key_is_in_the_table():
    page = (ROOT / "docs/operating.md").read_text()
    table = page[page.index("## What will fit"):page.index("## Limits")]
    ran = subprocess.run([PROGRAM, "plan", "Kimi-K2-Instruct", "-dp", "8", "-ep", "--max-num-seqs", "4", "--json"], capture_output=True, text=True)
    plan = json.loads(ran.stdout)
    named = [*plan, *plan["device"], *plan["stages"][0], *plan["stages"][0]["kv_cache"], *plan["concurrency"][0], *plan["flags"][0]]
    for demand in plan["demands"]:
        named += [key for key in demand if key != "fits"]
    assert len(plan["demands"]) == 2 and [key for key in named if f"`{key}`" not in table] == []


@pytest.mark.parametrize("words", [
    "-dp 16 -ep --gpu h100-80g", "-dp 16 -ep --gpu h800-80g --kv-cache-dtype fp8 --max-model-len 65536", "-tp 4 -dp 4", "-dp 8 -ep", "-dp 16",
    "-dp 16 -dpl 8 -dpa 10.0.0.1", "-dp 16 -dpl 8 -dpa 10.0.0.1 -ep --gpu h100-80g", "-dp 16 -dpl 8 -dpa 10.0.0.1 -ep --gpu h100-80g --headless -dpr 8",
    "-dp 16 -ep --gpu h100-80g --enable-eplb", "-tp 4 -dp 2 --deterministic"])
def test_what_is_told_fits_on_the_same_gpus(words):
    command = [PROGRAM, "plan", "Kimi-K2-Instruct", *words.split()]
    first = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()[0]
    found = re.search(r"It fits on the same \d+ devices with (.*)", first)
    assert found and "--max-model-len" not in found[1], first
    followed = subprocess.run([*command, *found[1].split()], capture_output=True, text=True)
    assert followed.returncode == 0, followed.stdout[:500] + followed.stderr


def test_a_known_model_needs_no_files_and_this_machine_is_the_default():
    known = subprocess.run([PROGRAM, "plan", "Kimi-K2.5", "-tp", "8"], capture_output=True, text=True)
    assert known.returncode == 0 and "8 x h200-141g" in known.stdout and "The weights are not here" in known.stdout
    pocket = subprocess.run([PROGRAM, "plan", *CPU], capture_output=True, text=True)
    assert pocket.returncode == 0 and "this machine" in pocket.stdout
