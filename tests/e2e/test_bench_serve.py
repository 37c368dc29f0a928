"""`baltoro bench serve` against a server of the pocket model: the guides' commands, and what it says beside what the server counted."""
import json
import re
import shlex
import signal
import socket
import subprocess
import time

import pytest
from conftest import PROGRAM, ROOT, Server, metrics_of
from test_pictures import BLUE, RED, encoded, model as seeing_model  # noqa: F401, a fixture

GUIDES = ROOT / "tests/guides"


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A server with a name of the guides, and a place for files."""
    running = Server("--served-model-name", "moonshotai/Kimi-K2-Instruct", "moonshotai/Kimi-K2.5", "Eco-Tech/Kimi-K2.5-w4a8")
    running.folder = tmp_path_factory.mktemp("bench")
    yield running
    running.stop()


def bench(server, *flags, code=0):
    done = subprocess.run([PROGRAM, "bench", "serve", "--base-url", server.url, *flags], capture_output=True, text=True,
                          timeout=120, cwd=getattr(server, "folder", None))
    assert done.returncode == code, done.stdout + done.stderr
    return done


def row(table, label):
    return float(re.search(rf"^{re.escape(label)} +([0-9.]+) *$", table, re.M).group(1))


def counter(server, name):
    text = metrics_of(server)
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"vllm:{name}{{"))


def counted(server):
    return [counter(server, name) for name in ("prompt_tokens_total", "generation_tokens_total")]


def guide(file, section):
    """The words of a guide's command behind `bench serve`, for this server: fewer and shorter requests, the pocket tokenizer."""
    text = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", (GUIDES / file).read_text(), re.M | re.S).group(1)
    words = shlex.split(text.replace("\\\n", " "))
    assert words[:3] == ["vllm", "bench", "serve"]
    words = words[3:]
    for flag, value in {"--num-prompts": "4", "--random-input-len": "100", "--random-output-len": "8", "--random-input": "100",
                        "--request-rate": "50"}.items():
        if flag in words:
            words[words.index(flag) + 1] = value
    if "--base-url" in words:
        at = words.index("--base-url")
        del words[at:at + 2]
    return words + ["--tokenizer", str(ROOT / "pocket/model")]


@pytest.mark.parametrize("file, section", [("k2_fp8.txt", "bench_h800"), ("k2_fp8.txt", "bench_h200"), ("k2_fp8_zh.txt", "bench_h800"), ("k2_fp8_zh.txt", "bench_h200")])
def test_the_fp8_guides_commands(small, file, section):
    before = counted(small)
    done = bench(small, *guide(file, section))
    assert row(done.stdout, "Successful requests:") == 4 and row(done.stdout, "Failed requests:") == 0
    assert row(done.stdout, "Request rate configured (RPS):") == 50
    assert row(done.stdout, "Total input tokens:") == 400 and row(done.stdout, "Total generated tokens:") == 32
    deadline = time.monotonic() + 10  # the server's counters may come a moment after its answers
    while counted(small) != [before[0] + 400, before[1] + 32]:
        assert time.monotonic() < deadline, (before, counted(small))
        time.sleep(0.05)
    lines = done.stdout.splitlines()
    table = lines[lines.index("============ Serving Benchmark Result ============"):]
    assert all(len(line) == 50 if line[:1] in "=-" else len(line) >= 51 for line in table)
    assert "--trust-remote-code has no effect here" in done.stderr


def test_the_ascend_guides_command_and_its_file(small):
    bench(small, *guide("k25_ascend.txt", "bench"), "--output-len", "5", "--save-detailed", "--metadata", "tp=8")
    (path,) = small.folder.glob("openai-50.0qps-Kimi-K2.5-w4a8-*.json")
    result = json.loads(path.read_text())
    assert result["completed"] == 4 and result["model_id"] == "Eco-Tech/Kimi-K2.5-w4a8" and result["tp"] == "8"
    assert result["request_rate"] == 50.0 and result["max_concurrency"] is None and result["request_goodput"] is None
    assert result["input_lens"] == [100] * 4 and result["output_lens"] == [5] * 4 and result["total_output_tokens"] == 20
    for ttft, itls, mean in zip(result["ttfts"], result["itls"], [result["mean_ttft_ms"]] * 4):
        assert 0 < ttft < 60 and len(itls) <= 5 and mean > 0
    assert result["mean_ttft_ms"] == pytest.approx(1e3 * sum(result["ttfts"]) / 4)
    assert result["output_throughput"] == pytest.approx(20 / result["duration"])


def test_the_k25_guides_command_on_a_local_data_set(small):
    words = guide("k25_h200.txt", "bench")
    refused = bench(small, *words, code=1)
    assert "hf download --repo-type dataset lmarena-ai/VisionArena-Chat" in refused.stderr
    rows = small.folder / "arena.jsonl"
    rows.write_text("".join(json.dumps({"conversation": [[{"role": "user", "content": f"What is {i} + 1?"}]], "images": []}) + "\n"
                            for i in range(3)))
    words[words.index("--dataset-path") + 1] = str(rows)
    done = bench(small, *words, "--hf-output-len", "6")
    assert row(done.stdout, "Successful requests:") == 4
    assert "3 fitting prompts" in done.stderr


@pytest.fixture(scope="module")
def seeing(seeing_model, tmp_path_factory):  # noqa: F811
    running = Server(seeing_model, "--load-format", "dummy", "--device", "cpu", "--dtype", "float32", "--served-model-name", "moonshotai/Kimi-K2.5")
    running.folder = tmp_path_factory.mktemp("pictures")
    yield running
    running.stop()


def test_the_k25_guides_command_as_printed_on_a_data_set_in_the_cache(seeing, monkeypatch):
    cache = seeing.folder / "hf/hub/datasets--lmarena-ai--VisionArena-Chat"
    (cache / "snapshots/abc/data").mkdir(parents=True)
    (cache / "refs").mkdir()
    (cache / "refs/main").write_text("abc")
    rows = [{"conversation": [[{"role": "user", "content": "What is it?"}], [{"role": "assistant", "content": "red"}]],
             "images": [{"bytes": encoded(picture), "path": None}]} for picture in (RED, BLUE)]
    (cache / "snapshots/abc/data/train-00000-of-00001.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setenv("HF_HOME", str(seeing.folder / "hf"))
    before = counted(seeing)
    done = bench(seeing, *guide("k25_h200.txt", "bench"))
    assert row(done.stdout, "Successful requests:") == 4
    # Two of each picture, of 50 tokens, and what the template has around them.
    assert row(done.stdout, "Total input tokens:") > 4 * 60
    assert counted(seeing)[0] - before[0] == row(done.stdout, "Total input tokens:")


def test_drawn_pictures_are_counted_as_the_server_counts_them(seeing):
    flags = ("--tokenizer", str(ROOT / "pocket/model"), "--backend", "openai-chat", "--dataset-name", "random-mm", "--num-prompts", "4",
             "--random-input-len", "10", "--random-output-len", "3")
    texts = bench(seeing, *flags, "--random-mm-base-items-per-request", "0")
    done = bench(seeing, *flags, "--random-mm-base-items-per-request", "2", "--random-mm-bucket-config", "{(56, 84, 1): 1}")
    assert row(done.stdout, "Successful requests:") == 4 and row(done.stdout, "Total generated tokens:") == 12
    # 2 x 3 tokens each, and the same number of tokens around each.
    more = row(done.stdout, "Total input tokens:") - row(texts.stdout, "Total input tokens:")
    assert more > 8 * 6 and more % 8 == 0


def test_a_server_that_never_answers_is_told_in_time(small):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        begun = time.monotonic()
        ran = subprocess.run([PROGRAM, "bench", "serve", "--port", str(silent.getsockname()[1]), "--model", "m", "--tokenizer", str(ROOT / "pocket/model"),
                              "--num-prompts", "1", "--ready-check-timeout-sec", "1"], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 1 and "no good answer within --ready-check-timeout-sec 1" in ran.stderr
    assert time.monotonic() - begun < 30
    nowhere = bench(small, "--tokenizer", str(ROOT / "pocket/model"), "--num-prompts", "1", "--save-result", "--result-dir", "/proc/nowhere", code=2)
    assert "--result-dir /proc/nowhere: " in nowhere.stderr and "Serving Benchmark Result" not in nowhere.stdout


def test_an_interrupt_ends_the_run_and_its_result_is_told(small):
    running = subprocess.Popen([PROGRAM, "bench", "serve", "--base-url", small.url, "--dataset-name", "random", "--random-input-len", "20",
                                "--tokenizer", str(ROOT / "pocket/model"), "--random-output-len", "4", "--num-prompts", "1000", "--request-rate", "5", "--ignore-eos"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    before = counted(small)[1]
    while counted(small)[1] < before + 8:
        assert running.poll() is None
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    table, said = running.communicate(timeout=60)
    assert running.returncode == 130 and "interrupted" in said
    assert row(table, "Successful requests:") >= 1
    assert row(table, "Successful requests:") + row(table, "Failed requests:") == 1000


def test_a_python_client_sees_the_same_text(small):
    prompts = small.folder / "prompts.jsonl"
    prompts.write_text('{"prompt": "2 + 3 ="}\n{"prompt": "1 2 3 4"}\n')
    done = bench(small, "--model", "moonshotai/Kimi-K2.5", "--dataset-name", "custom", "--dataset-path", str(prompts), "--num-prompts", "2",
                 "--skip-chat-template", "--disable-shuffle", "--skip-tokenizer-init", "--temperature", "0", "--custom-output-len", "7",
                 "--result-filename", "same.json", "--save-result", "--save-detailed", "--percentile-metrics", "e2el", "--goodput", "ttft:60000")
    result = json.loads((small.folder / "same.json").read_text())
    for prompt, text, tokens in zip(("2 + 3 =", "1 2 3 4"), result["generated_texts"], result["output_lens"]):
        answer = small.client().completions.create(model="moonshotai/Kimi-K2.5", prompt=prompt, temperature=0, max_tokens=7)
        assert text == answer.choices[0].text and tokens == answer.usage.completion_tokens
    assert row(done.stdout, "Request goodput (req/s):") == row(done.stdout, "Request throughput (req/s):")
    assert "P99 E2EL (ms):" in done.stdout and "TTFT" not in done.stdout


def test_agent_sessions_find_their_prefix(small):
    before = counter(small, "prefix_cache_hits_total")
    done = bench(small, "--model", "moonshotai/Kimi-K2.5", "--tokenizer", str(ROOT / "pocket/model"), "--backend", "openai-chat",
                 "--dataset-name", "agent", "--num-prompts", "6", "--agent-turns", "3", "--agent-context-min", "600",
                 "--agent-context-max", "900", "--agent-shared-len", "200", "--agent-output-len", "4", "--agent-think-time", "0",
                 "--max-concurrency", "2", "--ready-check-timeout-sec", "5", "--num-warmups", "1")
    assert row(done.stdout, "Successful requests:") == 6
    # Each later turn finds at least the one before, but for its last block.
    assert counter(small, "prefix_cache_hits_total") - before > 0.3 * row(done.stdout, "Total input tokens:")


def test_a_sweep_prints_plots_and_appends(small):
    done = bench(small, "--model", "moonshotai/Kimi-K2.5", "--tokenizer", str(ROOT / "pocket/model"), "--input-len", "20", "--output-len", "4",
                 "--num-prompts", "6", "--sweep-concurrency", "1", "3", "--sweep-svg", "s.svg", "--append-result", "--result-filename", "all.json")
    assert done.stdout.count("Serving Benchmark Result") == 2 and "tok/s/user" in done.stdout
    results = [json.loads(line) for line in (small.folder / "all.json").read_text().splitlines()]
    assert [result["max_concurrency"] for result in results] == [1, 3]
    assert (small.folder / "s.svg").read_text().count("<polyline") == 7


def test_failures_are_told_and_counted(small):
    done = bench(small, "--model", "no-such-model", "--tokenizer", str(ROOT / "pocket/model"), "--num-prompts", "3", "--output-len", "2", code=1)
    assert row(done.stdout, "Failed requests:") == 3 and "404" in done.stderr and "no request succeeded" in done.stderr
    assert "is a server running" not in done.stderr  # one answers
    nobody = subprocess.run([PROGRAM, "bench", "serve", "--port", "1"], capture_output=True, text=True)
    assert nobody.returncode == 1 and "is a server running at http://127.0.0.1:1?" in nobody.stderr


def test_the_pocket_models_own_name_needs_no_flag(server):
    done = bench(server, "--num-prompts", "2", "--random-input", "20", "--random-output", "3")
    assert row(done.stdout, "Total input tokens:") == 40
