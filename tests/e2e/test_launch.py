"""`baltoro launch`: the servers of a node, each with devices, a port and a rank of its own."""
import json
import os
import pathlib
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request

from conftest import PROGRAM
from nodes import alive, free_port, wait_for


def launch(*words, cwd, env=None):
    return subprocess.Popen([PROGRAM, "launch", *words], cwd=cwd, env={**os.environ, **(env or {})}, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def run(*words, cwd, env=None):
    with launch(*words, cwd=cwd, env=env) as process:
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err


def ask(port):
    body = {"model": "pocket", "prompt": "Hello there", "max_tokens": 4}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def serves(port):
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).status == 200
    except (urllib.error.URLError, ConnectionError):
        return False


def pids_below(pid):
    found = []
    for children in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            found += [child, *pids_below(child)]
    return found


def two_ports():
    while True:
        port = free_port()
        if port + 1 < 20000:
            return port


def check_two_servers(process, port, log_dir):
    try:
        wait_for(lambda: serves(port) and serves(port + 1), 120, "both servers")
        for each in (port, port + 1):
            assert ask(each)["choices"]
        logs = [(log_dir / f"dp_rank_{rank}.log").read_text() for rank in (0, 1)]
        for rank, text in enumerate(logs):
            assert f'"data_parallel_rank":{rank}' in text and f":{port + rank}" in text, text
        # One that dies is named, and the other one goes on.
        children = pids_below(process.pid)
        engine = next(pid for pid in children
                      if f"--port\0{port}\0" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode())
        os.kill(engine, signal.SIGKILL)
        wait_for(lambda: not serves(port), 10, "its end")
        time.sleep(0.5)
        assert ask(port + 1)["choices"] and process.poll() is None
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=40)
        assert process.returncode == 0 and not any(map(alive, children)), err
        assert re.search(r"rank 0 ended (by signal 9|with exit code 137)", err) and "the others go on: 1 of 2" in err, err
        assert "stopping all ranks" in err
    finally:
        process.kill()


def test_servers_without_a_template(tmp_path):
    port = two_ports()
    process = launch("--dp-size", "2", "--dp-address", "127.0.0.1", "--vllm-start-port", str(port), "--log-dir", str(tmp_path), "--",
                     "--host", "127.0.0.1", "--device", "cpu", "--cpu-threads", "1", "--max-model-len", "1024", cwd=tmp_path)
    check_two_servers(process, port, tmp_path)


def test_servers_of_a_template(tmp_path):
    (tmp_path / "run_dp_template.sh").write_text(
        f"export ASCEND_RT_VISIBLE_DEVICES=$1\n{PROGRAM} serve --host 127.0.0.1 --device cpu --cpu-threads 1 --max-model-len 1024 \\\n"
        "--port $2 --data-parallel-size $3 --data-parallel-rank $4 --data-parallel-address $5 --data-parallel-rpc-port $6 \\\n"
        "--tensor-parallel-size $7\n")
    port = two_ports()
    process = launch("--dp-size", "2", "--dp-address", "127.0.0.1", "--vllm-start-port", str(port), "--log-dir", str(tmp_path), cwd=tmp_path)
    check_two_servers(process, port, tmp_path)


def test_devices_are_dealt_out_and_lines_say_whose_they_are(tmp_path):
    (tmp_path / "mine.sh").write_text('echo "told $1 sees $CUDA_VISIBLE_DEVICES"; printf "no end"\n')
    flags = ["--dp-size", "4", "--tp-size", "2", "--dp-size-local", "2", "--dp-rank-start", "2", "--dp-address", "10.0.0.1", "--template",
             "mine.sh"]
    env = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    ran = subprocess.run([PROGRAM, "launch", *flags], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0
    for line in ("(dp 2) told 0,1 sees 0,1", "(dp 3) told 2,3 sees 2,3", "(dp 2) no end", "(dp 3) no end",
                 "baltoro launch: rank 3 of 4: port 9001, devices 2,3", "baltoro launch: rank 2 ended with exit code 0"):
        assert line in ran.stderr.splitlines(), ran.stderr
    code, _, err = run(*flags, cwd=tmp_path, env={"CUDA_VISIBLE_DEVICES": "4,5,6,7"})
    assert code == 0 and "(dp 3) told 6,7 sees 6,7" in err
    # Before any is started.
    code, _, err = run(*flags, "--local-dp-start-rank", "1", cwd=tmp_path, env={"CUDA_VISIBLE_DEVICES": "4,5,6,7"})
    assert code == 1 and ("CUDA_VISIBLE_DEVICES=4,5,6,7 names 4 GPUs, and 2 servers or replicas of 2 each want 5, with the 1 before them"
                          in err) and "rank 2 of 4" not in err, err
    code, _, err = run("--dp-size", "4", "--dp-address", "a", "--template", "mine.sh", cwd=tmp_path, env={"CUDA_VISIBLE_DEVICES": "0,1"})
    assert code == 1 and "names 2 GPUs, and 4 servers or replicas of 1 each want 4" in err and "told" not in err, err


def test_the_first_that_fails_gives_the_exit_code_and_the_others_go_on(tmp_path):
    (tmp_path / "run_dp_template.sh").write_text('[ "$4" != 1 ] || exit 3\nsleep 1\n[ "$4" != 2 ] || exit 4\necho done\n')
    code, _, err = run("--dp-size", "3", "--dp-address", "127.0.0.1", cwd=tmp_path)
    assert code == 3 and "rank 1 ended with exit code 3" in err and "the others go on: 2 of 3" in err and "(dp 0) done" in err, err


def test_a_stop_reaches_what_a_template_started_and_a_second_one_does_not_wait(tmp_path):
    (tmp_path / "run_dp_template.sh").write_text("trap '' TERM\nsleep 60 &\necho started\nwait\nwait\nsleep 60\n")
    process = launch("--dp-size", "2", "--dp-address", "127.0.0.1", cwd=tmp_path)
    try:
        wait_for(lambda: len(pids_below(process.pid)) >= 4, 20, "both")
        children = pids_below(process.pid)
        process.send_signal(signal.SIGINT)
        time.sleep(1)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
        wait_for(lambda: not any(map(alive, children)), 5, "the end of all")
    finally:
        process.kill()


def test_without_a_template_the_ways_are_named(tmp_path):
    code, _, err = run("--dp-size", "2", "--dp-address", "127.0.0.1", cwd=tmp_path)
    assert code == 1 and "run_dp_template.sh" in err and "--template" in err and "behind --" in err
    code, _, err = run("--dp-size", "2", "--dp-address", "127.0.0.1", "--log-dir", "/nowhere/at/all", "--", cwd=tmp_path)
    assert code == 1 and "--log-dir /nowhere/at/all: this folder is not there and cannot be made" in err


def test_a_folder_for_logs_is_made(tmp_path):
    (tmp_path / "mine.sh").write_text("echo said\n")
    for _ in range(2):
        code, _, err = run("--dp-size", "1", "--dp-address", "a", "--template", "mine.sh", "--log-dir", "logs", cwd=tmp_path)
        assert code == 0, err
    assert (tmp_path / "logs" / "dp_rank_0.log").read_text() == "said\nsaid\n"
