"""What ./package.sh makes of the help: a manual page and a completion that know every subcommand and flag of this program."""
import re
import subprocess
import sys

import pytest

from conftest import PROGRAM, ROOT


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("package")
    page, completion = folder / "baltoro.1", folder / "baltoro"
    subprocess.run([sys.executable, ROOT / "tools/package/manual.py", PROGRAM, page, completion], check=True)
    return page.read_text(), completion


def completed(completion, *words):
    script = f'. {completion}; COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); _baltoro; echo "${{COMPREPLY[*]}}"'
    return subprocess.run(["bash", "-c", script, "bash", *words], check=True, capture_output=True, text=True).stdout.split()


def test_the_page_has_every_flag(made):
    page = made[0]
    markdown = (ROOT / "docs/flags.md").read_text()
    flags = set(re.findall(r"^\| `(--[a-z0-9-]+)", markdown, re.M))
    assert len(flags) > 200
    for flag in flags:
        assert ".B " + flag.replace("-", "\\-") in page, flag
    for command in re.findall(r"^## baltoro (.+)$", markdown, re.M):
        assert f'.SH "BALTORO {command.upper()}"' in page


def test_completion(made):
    completion = made[1]
    assert {"serve", "pull", "doctor", "bench"} <= set(completed(completion, "baltoro", ""))
    assert "route" not in completed(completion, "baltoro", "")  # not available yet
    assert completed(completion, "baltoro", "serve", "--max-model-l") == ["--max-model-len"]
    assert completed(completion, "vllm", "bench", "thr") == ["throughput"]
    assert "--num-prompts" in completed(completion, "baltoro", "bench", "serve", "--num")
    assert completed(completion, "baltoro", "serve", "--device", "cu") == ["cuda"]
    assert completed(completion, "baltoro", "serve", "/mod") == []  # left to the shell: files
