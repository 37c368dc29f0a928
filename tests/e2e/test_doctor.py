"""`baltoro doctor` on this machine: the same lines as text and as JSON, planted faults of a model folder, a taken port."""
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import time

import pytest

from conftest import PROGRAM, ROOT
from hub import Hub
from test_pull import environment, pull

POCKET = ROOT / "pocket/model"


def doctor(*words, env=None):
    started = time.monotonic()
    ran = subprocess.run([PROGRAM, "doctor", *words, "--json"], capture_output=True, text=True, timeout=60,
                         env={**os.environ, **(env or {})})
    assert time.monotonic() - started < 60
    report = json.loads(ran.stdout)
    assert ran.returncode == (1 if report["verdict"] == "broken" else 0), ran.stdout
    for check in report["checks"]:
        assert (check["verdict"] == "ok") == ("remedy" not in check), check
    return {check["name"]: check for check in report["checks"]}


def test_text_has_a_line_for_each_check():
    text = subprocess.run([PROGRAM, "doctor", "--port", "1025"], capture_output=True, text=True, timeout=60).stdout
    for name in doctor("--port", "1025"):
        assert any(line.startswith(("ok ", "warning ", "broken ")) and f" {name} " in line for line in text.splitlines()), name
    assert text.splitlines()[-1].endswith(("warning.", "warnings.", "Nothing is wrong."))


def test_the_pocket_model_is_whole():
    checks = doctor(str(POCKET))
    assert checks["model"]["text"] == str(POCKET)
    assert checks["weights"]["verdict"] == "ok" and "3 files, 0.03 GB" in checks["weights"]["text"]
    assert "GB/s" in checks["memory rate"]["text"]


def test_the_server_says_of_the_cpu_what_the_doctor_says():
    cpu = doctor("--port", "1025")["CPU"]["text"].split(": ", 1)[1]
    assert re.match(r"(without AVX2|\w+), \d+ threads? on \d+ cores?", cpu), cpu
    with subprocess.Popen([PROGRAM, "serve", str(POCKET), "--device", "cpu", "--port", "0"], stderr=subprocess.PIPE, text=True) as server:
        said = next(line for line in server.stderr if "Operations: " in line)
        server.terminate()
        server.stderr.read()
    assert said.rstrip().endswith(f" on {cpu}"), (said, cpu)


def test_a_taken_port_is_told():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        check = doctor("--port", str(port))[f"port {port}"]
    assert check["verdict"] == "warning" and "in use" in check["text"]


@pytest.mark.parametrize("harm, check, sentence", [
    (lambda folder: (folder / "model-00002-of-00002.safetensors").unlink(), "weights", "No such file"),
    (lambda folder: os.truncate(folder / "model-00001-of-00002.safetensors", 5_000_000), "weights", "of the data, which has"),
    (lambda folder: (folder / "config.json").write_text("{"), "config.json", "JSON"),
    (lambda folder: (folder / "tiktoken.model").unlink(), "vocabulary", "tiktoken.model"),
])
def test_what_is_wrong_with_a_folder_is_named(tmp_path, harm, check, sentence):
    folder = tmp_path / "model"
    shutil.copytree(POCKET, folder)
    harm(folder)
    found = doctor(str(folder))[check]
    assert found["verdict"] == "broken" and sentence in found["text"] and "baltoro pull" in found["remedy"]


def test_a_model_that_is_not_here():
    check = doctor("org/nothing")["model"]
    assert check["verdict"] == "broken" and "baltoro pull org/nothing" in check["text"]


@pytest.mark.parametrize("flags", [[], ["--local-dir"]], ids=["cache", "folder"])
def test_sums_are_those_of_the_download(tmp_path, flags):
    files = {path.name: path.read_bytes() for path in POCKET.iterdir()}
    with Hub(files, {name for name in files if name.endswith(".safetensors")}) as hub:
        folder = pull(hub, tmp_path, *flags, *([str(tmp_path / "model")] if flags else []))
    env = environment(tmp_path)
    check = doctor(folder, "--sums", env=env)["sums"]
    assert check["verdict"] == "ok" and f"{len(files)} files are as they were" in check["text"]
    with open(os.path.join(folder, "model-00001-of-00002.safetensors"), "r+b") as weights:
        weights.seek(9_000_000)
        weights.write(b"damaged")
    check = doctor(folder, "--sums", env=env)["sums"]
    assert check["verdict"] == "broken" and "model-00001-of-00002.safetensors has the sum" in check["text"]
    assert doctor(str(POCKET), "--sums")["sums"]["verdict"] == "warning"  # no download left any


@pytest.fixture(scope="module")
def cards(tmp_path_factory):
    """A driver that shows two cards, in an environment."""
    folder = tmp_path_factory.mktemp("driver")
    library = folder / "libnvidia-ml.so.1"
    source = pathlib.Path(__file__).parent / "fake_nvml.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, source], check=True)
    (folder / "libcuda.so.1").symlink_to(library)
    return {"LD_LIBRARY_PATH": str(folder), "CUDA_VISIBLE_DEVICES": "0,1"}


def test_what_a_driver_says_of_its_cards(cards):
    checks = doctor(env=cards | {"FAKE_PID": str(os.getpid())})
    assert checks["driver"] == {"name": "driver", "verdict": "ok", "text": "NVIDIA 580.65.06, CUDA 13.0"}
    assert "NVIDIA H200, 141.0 GiB, 3.0 GiB in use" in checks["GPU 0"]["text"]
    name = pathlib.Path(f"/proc/{os.getpid()}/comm").read_text().strip()
    assert f"held by {name} (pid {os.getpid()}) 2.0 GiB" in checks["GPU 1"]["text"]
    assert "all 2 GPUs read each other's memory, with NVLink" in checks["peer access"]["text"]
    assert doctor(env=cards | {"FAKE_PEER": "1"})["peer access"]["verdict"] == "warning"


def test_an_old_driver_and_one_that_fails(cards):
    check = doctor(env=cards | {"FAKE_DRIVER": "535.104.05", "FAKE_CUDA": "12020"})["driver"]
    assert check["verdict"] == "broken" and "cuda-compat-13-0" in check["remedy"]
    # The start of a server says the same, before it looks for the module that the driver would run.
    start = subprocess.run([PROGRAM, "serve", str(POCKET), "--device", "cuda", "--port", "0"], timeout=60, capture_output=True, text=True,
                           env=os.environ | cards | {"FAKE_CUDA": "12040"})
    assert start.returncode != 0
    assert "--device cuda: the NVIDIA driver has CUDA 12.4, and CUDA 13.0 is needed: " + check["remedy"] in start.stderr
    assert "forward-compatibility" in doctor(env=cards | {"FAKE_DRIVER": "550.54.15"})["driver"]["text"]
    checks = doctor(env=cards | {"FAKE_CARDS": "0"})
    assert checks["GPU"]["verdict"] == "broken" and "shows no card" in checks["GPU"]["text"]
