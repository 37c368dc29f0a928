"""What the pocket model sees: held-out pictures with questions, through the API. The right answers of every way to serve it are counted, and streamed
answers are those that come whole."""
import gzip
import json
import subprocess

import openai
import pytest

from conftest import PROGRAM, ROOT, Server

CASES = ROOT / "pocket/eval/see.jsonl.gz"
WANTED = {"easy": 0.95, "hard": 0.8}
WAYS = {"plain": [], "without-prefixes": ["--no-enable-prefix-caching"],
        "pictures-shared-out": ["-tp", "2", "--mm-encoder-tp-mode", "data"], "encoder-in-parts": ["-tp", "2", "--mm-encoder-tp-mode", "weights"]}


@pytest.mark.parametrize("way", WAYS)
def test_it_sees(way, tmp_path):
    server = Server(*WAYS[way])
    try:
        report = tmp_path / "report.json"
        subprocess.run([PROGRAM, "eval", "--url", server.url, "--concurrency", "16", "--cases", str(CASES), "--output", str(report)],
                       check=True, stdout=subprocess.DEVNULL)
        rows = json.loads(report.read_text())["tasks"]
    finally:
        server.stop()
    assert len(rows) == 8 and sum(row["cases"] for row in rows) == 400
    for tier, wanted in WANTED.items():
        of_tier = [row for row in rows if row["tier"] == tier]
        right, cases = (sum(row[name] for row in of_tier) for name in ("right", "cases"))
        assert right >= wanted * cases, rows


def test_streamed_answers_are_the_whole_ones():
    with gzip.open(CASES, "rt") as lines:
        cases = [json.loads(line) for line in lines][::16]
    server = Server("--limit-mm-per-prompt", '{"image": 2}')
    try:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none")
        for case in cases:
            ask = dict(model="pocket", messages=case["messages"], max_tokens=64, temperature=0, extra_body={"chat_template_kwargs": {"thinking": False}})
            whole = client.chat.completions.create(**ask)
            parts = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
            assert "".join(p.choices[0].delta.content or "" for p in parts if p.choices) == whole.choices[0].message.content
            assert parts[-1].usage.prompt_tokens == whole.usage.prompt_tokens
            assert whole.usage.prompt_tokens > 9  # the picture's tokens count
    finally:
        server.stop()
