"""The examples of docs/api.md, run as they stand against a server with the pocket model: what they print is on the page."""
import pathlib
import re
import subprocess
import sys

import pytest

PAGE = (pathlib.Path(__file__).resolve().parents[2] / "docs/api.md").read_text()
BLOCKS = re.findall(r"^```(python|sh)\n(.*?)^```\n```text\n(.*?)^```$", PAGE, re.M | re.S)


def test_every_example_says_what_it_prints():
    assert len(BLOCKS) == len(re.findall(r"^```(?:python|sh)$", PAGE, re.M)) >= 8


@pytest.mark.parametrize("language, code, printed", BLOCKS, ids=[f"{i}-{block[0]}" for i, block in enumerate(BLOCKS)])
def test_example(server, model, language, code, printed):
    code = code.replace("http://127.0.0.1:8000", server.url).replace('"pocket"', f'"{model}"')
    command = [sys.executable, "-c", code] if language == "python" else ["bash", "-euo", "pipefail", "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == printed
