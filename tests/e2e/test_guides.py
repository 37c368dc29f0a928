"""The commands of the deployment guides as printed, through the name `vllm`, with the pocket model in place of theirs and
ranks on the CPU: tests/guides/cases.json says which run and what is said of their flags."""
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time
import urllib.request

import pytest

from conftest import PROGRAM, ROOT, Server
from hub import Hub
from nodes import SMALL, Cluster, Node, free_port
from wide_pocket import make_wide_pocket

VLLM = str(pathlib.Path(PROGRAM).with_name("vllm"))
GUIDES = json.loads((ROOT / "tests/guides/cases.json").read_text())["guides"]
EXAMPLES = ROOT / "examples/guides"
# What the guides leave to the reader.
VARIABLES = {"MODEL_PATH": "/models/kimi-k2.5", "EAGLE3_PATH": "/models/kimi-k2.5-eagle3-mla", "node0_ip": "127.0.0.1",
             "MASTER_IP": "127.0.0.1", "PORT": str(free_port())}
DRAFTS = {VARIABLES["EAGLE3_PATH"]: "pocket", "lightseekorg/kimi-k2.5-eagle3": str(ROOT / "pocket/draft-llama")}
KINDS = {"serve": [], "request": [], "client": [], "launch": []}
for guide in GUIDES:
    for entry in guide["cases"]:
        entry["guide"] = guide["file"]
        KINDS.setdefault(entry["kind"], []).append(entry)
RUNNING = [entry for entry in KINDS["serve"] if (not entry.get("waits") or "runs_without" in entry) and "head" not in entry]


def name_of(entry):
    return f"{entry['guide']}/{entry['id']}"


def printed(entry):
    text = (ROOT / f"tests/guides/{entry['guide']}.txt").read_text()
    return re.search(rf"^## {entry['id']}\n(.*?)(?=^## |\Z)", text, re.M | re.S).group(1).strip("\n")


def words_of(entry):
    """Behind `vllm serve`: MODEL and flags but for what the case leaves out and where servers are, and then what it adds."""
    command = re.sub(r"\$\{?(\w+)\}?", lambda found: VARIABLES[found.group(1)], printed(entry).replace("\\\n", " "))
    words = shlex.split(command)
    assert words[:2] == ["vllm", "serve"]
    kept = [word for word in words[2:] if word not in entry.get("runs_without", [])]
    for flag in {"--host", "--port"} & set(kept):
        del kept[kept.index(flag):kept.index(flag) + 2]
    if (flag := "--data-parallel-rpc-port") in kept:
        kept[kept.index(flag) + 1] = VARIABLES["PORT"]
    return kept + shlex.split(entry.get("added", {"flags": ""})["flags"])


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """What cases call "pocket", "wide fp8" and "wide int4"."""
    home = tmp_path_factory.mktemp("models")
    made = {"pocket": "pocket"}
    make_wide_pocket(ROOT / "pocket/model", home / "bf16")
    for weights in ("fp8", "int4", "w4a8"):
        made[f"wide {weights}"] = str(home / weights)
        subprocess.run([PROGRAM, "quantize", str(home / "bf16"), str(home / weights), "--format", weights], check=True,
                       capture_output=True)
    return made


def nodes_beside(entry):
    """The other nodes of a server, each with a command of its own."""
    return [other for other in KINDS["serve"] if (other["guide"], other.get("head")) == (entry["guide"], entry["id"])]


def said_of_flags(words, env):
    """Of `vllm plan --json`: flag to state and reason."""
    ran = subprocess.run([VLLM, "plan", "--json", *words], env=env, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0 and ran.stderr.count("vllm: this is Baltoro") == 1, ran.stderr
    return {entry["flag"]: (entry["state"], entry.get("why", "")) for entry in json.loads(ran.stdout)["flags"]}


def expect_every_flag(entry, words, flags):
    """Each flag that was given is there once; what is not simply in force is what the case says."""
    given = {word for word in words if re.match(r"--?[a-z]", word)}
    assert len(flags) == len(given), (sorted(flags), sorted(given))
    others = [f"{flag} {why}" for flag, (state, why) in flags.items() if state != "in force"]
    assert len(others) == len(entry["says"]), others
    for says in entry["says"]:
        assert sum(line.startswith(says) for line in others) == 1, (says, others)


def expect_in_log(entry, flags, server):
    lines = ["vllm: this is Baltoro", "Starting vLLM server on http://127.0.0.1:", "Loading weights took ",
             "Model loading took ", "Available KV cache memory: ", "GPU KV cache size: ", "Maximum concurrency for ",
             "init engine (profile, create kv cache, warmup model) took ", "Application startup complete.",
             "Chunked prefill is enabled with max_num_batched_tokens="]
    for line in [*lines, *entry["says"]]:
        assert server.says(line), line
    text = server.text()
    in_force = re.search(r"non-default args: {.*}; in force: (.*)", text).group(1).split(", ")
    of_command = [flag for flag in in_force if not flag.startswith(("--host ", "--port "))]
    assert of_command == [flag for flag, (state, _) in flags.items() if state in ("in force", "changed")]
    for line in [*lines, *entry["says"]]:
        assert text.count(line) == 1, line
    # A start is read: beside a line for each flag without effect, none comes once a rank.
    assert len(text.splitlines()) - len(entry["says"]) <= 32, text


def send(entry, url):
    """A request of a guide as printed, but for where the server is."""
    command = re.sub(r"http://[^/\s\"]+", url, printed(entry))
    if entry["kind"] == "client":
        ran = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, timeout=120)
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.strip()
        return
    ran = subprocess.run(["bash", "-c", command.replace("curl ", "curl -sS --fail-with-body ", 1)], capture_output=True,
                         text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    if "/health" in command:
        assert ran.stdout == ""
        return
    answer = json.loads(ran.stdout)
    asked = json.loads(re.search(r"-d '(.*)'", command, re.S).group(1))
    assert answer["object"] == "chat.completion" and answer["model"] == asked["model"]
    choice, = answer["choices"]
    assert choice["finish_reason"] in ("stop", "length")
    assert choice["message"]["content"] or choice["message"]["reasoning_content"]
    assert 0 < answer["usage"]["completion_tokens"] <= asked["max_tokens"]


def expect_accepted_drafts(server):
    """An engine counts for its door a few times a second, so it may be after the answer."""
    until = time.monotonic() + 10
    while not re.search(r"^vllm:spec_decode_num_accepted_tokens_total{.*} [1-9]",
                        counters := urllib.request.urlopen(server.url + "/metrics").read().decode(), re.M):
        assert time.monotonic() < until, counters
        time.sleep(0.1)


@pytest.mark.parametrize("entry", RUNNING, ids=name_of)
def test_a_server_of_a_guide_starts_as_printed(entry, models):
    words = words_of(entry)
    map_of_models = ",".join([f"{words[0]}={models[entry['model']]}", *(f"{draft}={ours}" for draft, ours in DRAFTS.items())])
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "BALTORO_MODEL_MAP": map_of_models}
    for flag in entry.get("runs_without", []):
        refused = subprocess.run([VLLM, "serve", *words, flag], env=env, capture_output=True, text=True, timeout=60, check=False)
        assert refused.returncode == 1 and f"{flag} is not available yet" in refused.stderr, refused.stderr
    flags = said_of_flags(words, env)
    expect_every_flag(entry, words, flags)
    others = [Node(*words_of(other), env=env) for other in nodes_beside(entry)]
    server = Server(*words, env=env, program=VLLM)
    try:
        expect_in_log(entry, flags, server)
        served = words[words.index("--served-model-name") + 1] if "--served-model-name" in words else words[0]
        # Of a path clients are told the last part; they may give the whole.
        told = pathlib.Path(served).name if served.startswith("/") else served
        assert [model.id for model in server.client().models.list().data] == [told]
        question = [{"role": "user", "content": "What is 27 + 58?"}]
        answer = server.client().chat.completions.create(model=served, messages=question, temperature=0)
        assert answer.model == told
        assert "85" in answer.choices[0].message.content
        if "--speculative-config" in words:
            expect_accepted_drafts(server)
        for request in KINDS["request"] + KINDS["client"]:
            if request["guide"] == entry["guide"] and request["server"] == entry["id"]:
                send(request, server.url)
        for other, node in zip(nodes_beside(entry), others, strict=True):
            for line in ["Ready: node 1 of 2", *other["says"]]:
                assert node.says(line), (line, node.text())
    finally:
        server.stop()
        for node in others:
            node.stop()


def test_requests_whose_servers_wait_are_answered_by_one_of_that_name():
    waiting = [request for request in KINDS["request"] if request.get("waits")]
    server = Server("--served-model-name", "kimi_k25", program=VLLM)
    try:
        lines = [line for line in server.text().splitlines() if "vllm: this is" not in line]
        assert len(lines) <= 20, server.text()
        for request in waiting:
            send(request, server.url)
    finally:
        server.stop()
    assert len(waiting) == 1


def test_an_installation_has_the_name_and_leaves_that_of_another(tmp_path):
    build = pathlib.Path(PROGRAM).parents[1]
    install = ["cmake", "--install", str(build), "--prefix", str(tmp_path)]
    subprocess.run(install, check=True, capture_output=True)
    ran = subprocess.run([tmp_path / "bin/vllm", "plan", "--seed", "1", "--flags"], capture_output=True, text=True, timeout=60,
                         check=True, cwd=tmp_path)
    assert "in force   --seed 1" in ran.stdout and str(tmp_path / "share/baltoro/pocket/model") in ran.stdout
    assert ran.stderr.count("vllm: this is Baltoro") == 1
    (tmp_path / "bin/vllm").unlink()
    (tmp_path / "bin/vllm").write_text("of another")
    told = subprocess.run(install, check=True, capture_output=True, text=True).stderr
    assert "another program" in told and (tmp_path / "bin/vllm").read_text() == "of another"


def test_a_plan_that_is_refused_tells_of_the_flags_nevertheless():
    plan = [VLLM, "plan", "--device", "cpu", "--flags", "--trust-remote-code", "--enforce-eager", "--seed", "1"]
    ran = subprocess.run([*plan, "/nowhere/model"], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 1 and "/nowhere/model: no such directory" in ran.stderr
    lines = ran.stdout.splitlines()
    assert len(lines) == 4 and "  in force   --seed 1" in lines
    assert sum(line.startswith("  no effect  --") for line in lines) == 2


def run_example(name, *words, cwd=EXAMPLES, **options):
    return subprocess.run([sys.executable, str(EXAMPLES / name), *words], cwd=cwd, capture_output=True, text=True, timeout=60,
                          env={**os.environ, "BALTORO": PROGRAM}, check=False, **options)


@pytest.mark.parametrize("entry", KINDS["launch"], ids=name_of)
def test_the_launcher_starts_the_template_as_printed(entry, tmp_path):
    """Once a rank, with the arguments that the guide lists; the template of the guides tells them here."""
    words = shlex.split(printed(entry))
    flags = dict(zip(words[2::2], words[3::2]))
    missing = run_example(*words[1:], cwd=tmp_path)
    assert missing.returncode == 1 and "run_dp_template.sh" in missing.stderr
    (tmp_path / "run_dp_template.sh").write_text('echo "$@" >>"told.$4"\n')
    ran = run_example(*words[1:], cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    ranks, tensor, start = (int(flags["--" + name]) for name in ("dp-size-local", "tp-size", "dp-rank-start"))
    for local in range(ranks):
        devices = ",".join(str(local * tensor + each) for each in range(tensor))
        assert (tmp_path / f"told.{start + local}").read_text().split() == [
            devices, str(7100 + local), flags["--dp-size"], str(start + local), flags["--dp-address"], "12321", str(tensor)]
    assert len(list(tmp_path.glob("told.*"))) == ranks


def test_a_rank_that_fails_is_the_exit_code_of_the_launcher(tmp_path):
    (tmp_path / "run_dp_template.sh").write_text('[ "$4" != 1 ] || exit 3\nexec sleep 1\n')
    ran = run_example("launch_online_dp.py", "--dp-size", "2", "--dp-address", "127.0.0.1", cwd=tmp_path)
    assert ran.returncode == 3 and "rank 1" in ran.stderr


@pytest.mark.parametrize("name, words, said", [
    ("load_balance_proxy_server_example.py", ["--prefiller-hosts", "a", "--decoder-hosts", "b"], "route")])
def test_what_is_not_there_yet_says_so(name, words, said):
    ran = run_example(name, *words)
    assert ran.returncode == 1
    assert ran.stderr.startswith(f"baltoro {said} is not available yet in this version\n") and ran.stderr.endswith(".\n")


def test_tuning_without_a_gpu_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    ran = run_example("benchmark_moe.py", "--model", "Kimi-K2-Thinking", "--tp-size", "8", "--dtype", "bfloat16", "--tune",
                      "--save-dir", str(tmp_path / "tables"))
    assert ran.returncode == 1 and not (tmp_path / "tables").exists()
    said = ran.stderr.splitlines()
    assert [line.split(":")[0] for line in said] == ["--dtype has no effect", "--tune has no effect", "baltoro tune"]
    assert said[-1] == "baltoro tune: error: it measures kernels of a GPU: CUDA_VISIBLE_DEVICES names none; unset it or name one"


def run_job(name, folder, **variables):
    """A batch script as SLURM would run it, on this machine."""
    env = {**os.environ, "SLURM_SUBMIT_DIR": str(folder), "BALTORO": PROGRAM, **variables}
    return subprocess.run(["bash", str(ROOT / "examples/slurm" / name)], env=env, capture_output=True, text=True, timeout=60,
                          check=False)


def test_the_jobs_around_a_server(tmp_path):
    (tmp_path / "baltoro-1/bin").mkdir(parents=True)
    for name in ("baltoro", "vllm"):
        (tmp_path / "baltoro-1/bin" / name).symlink_to(PROGRAM)
    subprocess.run(["tar", "-czf", tmp_path / "a.tar.gz", "-C", tmp_path, "baltoro-1"], check=True)
    paths = {"ARCHIVE": "a.tar.gz", "PREFIX": str(tmp_path / "shared")}
    assert "Installed baltoro " in run_job("environment.sbatch", tmp_path, **paths).stdout
    assert "has a baltoro already" in run_job("environment.sbatch", tmp_path, **paths).stderr
    ran = run_job("benchmark.sbatch", tmp_path, BALTORO="/bin/echo", SERVER_URL="http://n:8000")
    assert ran.returncode == 0 and ran.stdout.startswith("bench serve --base-url http://n:8000 --backend openai-chat ")
    ran = run_job("tune.sbatch", tmp_path, MODEL="m", TUNING_DIR="t", EXAMPLES=str(ROOT / "examples"))
    assert ran.returncode != 0 and "baltoro tune: error: " in ran.stderr


K25 = "moonshotai/Kimi-K2.5"
K25_FILES = {"config.json": b"{}", "model.safetensors": b"weights"}


def hub_variables(hub, home):
    """For a process whose cache and token are in `home`."""
    return {"HF_ENDPOINT": hub.url, "HOME": str(home), "HF_HOME": str(home / "hf"), "HF_TOKEN": "", "no_proxy": "127.0.0.1"}


def test_the_job_that_downloads(tmp_path):
    with Hub(K25_FILES, {"model.safetensors"}, repo=K25) as hub:
        ran = run_job("download.sbatch", tmp_path, MODEL_DIR="m", **hub_variables(hub, tmp_path))
        assert ran.returncode == 0 and "Download complete. Weights at m." in ran.stdout, ran.stderr
        assert {name: (tmp_path / "m" / name).read_bytes() for name in K25_FILES} == K25_FILES
        hub.token = "hf_other"
        ran = run_job("download.sbatch", tmp_path, MODEL_DIR="n", **hub_variables(hub, tmp_path))
        assert ran.returncode == 1 and "gated" in ran.stderr and "complete" not in ran.stdout


@pytest.mark.parametrize("entry", KINDS["download"], ids=name_of)
def test_a_download_of_a_guide(entry, tmp_path):
    """As `ours` has it, and with the flags that the guide gives to Hugging Face's program."""
    words = shlex.split(printed(entry).replace("\\\n", " "))
    assert words[:2] == ["huggingface-cli", "download"]
    with Hub(K25_FILES, {"model.safetensors"}, repo=K25) as hub:
        for command in (shlex.split(entry["ours"]), ["baltoro", "pull", *words[2:]]):
            assert command[:2] == ["baltoro", "pull"]
            folder = tmp_path / str(len(command))
            ran = subprocess.run([PROGRAM, *(word.replace("${MODEL_DIR}", str(folder)) for word in command[1:])], text=True,
                                 env=os.environ | hub_variables(hub, tmp_path), capture_output=True, timeout=60, check=False)
            assert ran.returncode == 0 and ran.stdout == f"{folder}\n", ran.stderr
            assert {name: (folder / name).read_bytes() for name in K25_FILES} == K25_FILES


def engine_environment(server):
    pairs = pathlib.Path(f"/proc/{server.engine_pid()}/environ").read_bytes().split(b"\0")
    return dict(pair.split(b"=", 1) for pair in pairs if b"=" in pair)


def test_a_launcher_for_ascend_deals_out_gpus():
    env = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    ran = subprocess.run([VLLM, "plan"], env={**env, "ASCEND_RT_VISIBLE_DEVICES": "0,zero"}, capture_output=True, text=True,
                         timeout=60, check=False)
    assert ran.returncode == 2 and "environment variable ASCEND_RT_VISIBLE_DEVICES=0,zero: expected numbers" in ran.stderr
    env.update(ASCEND_RT_VISIBLE_DEVICES="4,5", VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS="30000")
    server = Server("--device", "cpu", env=env, program=VLLM)
    try:
        assert engine_environment(server)[b"CUDA_VISIBLE_DEVICES"] == b"4,5"
        assert server.says("ASCEND_RT_VISIBLE_DEVICES=4,5 is taken as CUDA_VISIBLE_DEVICES")
        assert server.says("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS: no effect: how long a step may take follows")
    finally:
        server.stop()


def test_the_interface_of_the_ranks_is_that_of_the_variables():
    with Cluster(2, "-tp", "2", env={"GLOO_SOCKET_IFNAME": "none0,lo", "TP_SOCKET_IFNAME": "lo"}) as cluster:
        assert cluster.head.says("The other nodes come to 127.0.0.1, of lo (GLOO_SOCKET_IFNAME)")
        assert cluster.head.says("TP_SOCKET_IFNAME: no effect: GLOO_SOCKET_IFNAME says which address this node has")
    words = [*SMALL, "-tp", "2", "--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port",
             str(free_port())]
    for variable, value in (("NCCL_SOCKET_IFNAME", "=xxxx"), ("HCCL_IF_IP", "141.xx.xx.1")):
        ran = subprocess.run([VLLM, "serve", *words], env={**os.environ, variable: value}, capture_output=True, text=True,
                             timeout=60, check=False)
        assert ran.returncode == 1 and f"environment variable {variable}={value}: no interface" in ran.stderr
        assert "lo 127.0.0.1" in ran.stderr
