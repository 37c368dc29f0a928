"""POST /start_profile and /stop_profile: the file has the form of trace events that Perfetto and chrome://tracing open."""
import collections
import gzip
import json
import os
import pathlib
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request

import pytest

from conftest import PROGRAM, Server


def post(server, path, body=None):
    data = json.dumps(body).encode() if body else b""
    request = urllib.request.Request(server.url + path, data, {"content-type": "application/json"}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def complete(server, n=1, **fields):
    return post(server, "/v1/completions", {"model": "pocket", "prompt": "Hello there", "max_tokens": 6, "n": n, "ignore_eos": True,
                                            **fields})


def config(folder, **more):
    return ["--profiler-config", json.dumps({"profiler": "torch", "torch_profiler_dir": str(folder), **more})]


def nested(spans):
    """Spans of one row lie within each other or one after the other."""
    open_until = []
    for begin, end in sorted(spans, key=lambda span: (span[0], -span[1])):
        while open_until and open_until[-1] <= begin + 0.002:  # microseconds are rounded to the third decimal
            open_until.pop()
        assert not open_until or end <= open_until[-1] + 0.002
        open_until.append(end)


@pytest.fixture(scope="module", params=[[], ["--engine-in-process"]], ids=["process", "in-process"])
def profiled(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("profile") / "made"
    running = Server(*config(folder), *request.param)
    running.folder = folder
    yield running
    assert running.stop() == 0


def test_a_recording_has_steps_threads_and_requests(profiled):
    complete(profiled)  # before it: not in it
    assert post(profiled, "/start_profile") == (200, "")
    status, again = post(profiled, "/start_profile")
    assert status == 400 and "POST /stop_profile ends it" in again
    assert complete(profiled, n=2)[0] == 200 and complete(profiled)[0] == 200
    status, said = post(profiled, "/stop_profile")
    assert status == 200
    said = json.loads(said)
    path = pathlib.Path(said["file"])
    assert path.parent == profiled.folder and path.name.endswith(".trace.json.gz")
    assert said["events_left_out"] == 0
    trace = json.loads(gzip.decompress(path.read_bytes()))
    by_phase = collections.defaultdict(list)
    for event in trace["traceEvents"]:
        assert isinstance(event["pid"], int) and event["name"]
        by_phase[event["ph"]].append(event)
    assert set(by_phase) == {"M", "X", "b", "e"}
    assert len(by_phase["X"]) + len(by_phase["b"]) + len(by_phase["e"]) == said["events"]

    names = {event["tid"]: event["args"]["name"] for event in by_phase["M"] if event["name"] == "thread_name"}
    rows = collections.defaultdict(list)
    for event in by_phase["X"]:
        assert event["ts"] >= 0 and event["dur"] >= 0 and event["tid"] in names
        rows[names[event["tid"]]].append(event)
    for spans in rows.values():
        nested([(event["ts"], event["ts"] + event["dur"]) for event in spans])
    assert {"schedule", "execute", "commit", "deliver"} <= {event["name"] for event in rows["engine"]}
    assert {"forward", "sample"} <= {event["name"] for event in by_phase["X"]}

    steps = rows["steps"]
    assert {event["name"] for event in steps} == {"prefill step", "decode step"}
    for event in steps:
        assert set(event["args"]) == {"step", "sequences", "prefill_tokens", "decode_tokens"}
        assert (event["args"]["prefill_tokens"] > 0) == (event["name"] == "prefill step") and event["dur"] > 0
    assert sum(event["args"]["decode_tokens"] for event in steps) == 3 * 5  # the first of six comes from the prompt
    forwards = [event for event in by_phase["X"] if event["name"] == "forward"]
    assert len(forwards) == len(steps)

    lives = collections.defaultdict(list)
    for event in sorted(by_phase["b"] + by_phase["e"], key=lambda event: event["ts"]):
        assert event["cat"] == "request"
        lives[event["id"]].append((event["ph"], event["name"]))
    assert len(lives) == 3
    for life in lives.values():
        assert life == [("b", "request"), ("b", "queue"), ("e", "queue"), ("b", "prefill"), ("e", "prefill"), ("b", "decode"),
                        ("e", "decode"), ("e", "request")]
    asked = [event["args"] for event in by_phase["b"] if event["name"] == "request"]
    assert all(args["prompt_tokens"] > 0 and args["max_tokens"] == 6 for args in asked)

    status, none = post(profiled, "/stop_profile")
    assert status == 400 and "POST /start_profile begins one" in none


def test_bench_serve_profiles_its_run(profiled):
    before = set(profiled.folder.iterdir())
    run = subprocess.run([PROGRAM, "bench", "serve", "--base-url", profiled.url, "--num-prompts", "3", "--random-input-len", "8",
                          "--random-output-len", "4", "--profile"], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0 and "--profile: " not in run.stdout + run.stderr, run
    made, = set(profiled.folder.iterdir()) - before
    trace = json.loads(gzip.decompress(made.read_bytes()))
    assert len([event for event in trace["traceEvents"] if event["ph"] == "b" and event["name"] == "request"]) >= 3


def test_what_is_under_way_ends_with_the_recording_in_plain_json(tmp_path):
    server = Server(*config(tmp_path, torch_profiler_use_gzip=False, torch_profiler_with_stack=True), "--load-format", "stand-in",
                    "--stand-in-step-ms", "5")
    try:
        assert server.says("torch_profiler_with_stack: no effect")
        assert post(server, "/start_profile")[0] == 200
        stream = urllib.request.urlopen(urllib.request.Request(
            server.url + "/v1/completions", json.dumps({"prompt": [1, 2, 3], "max_tokens": 2000, "ignore_eos": True, "stream": True}).encode(),
            {"content-type": "application/json"}), timeout=60)
        stream.readline()
        path = pathlib.Path(json.loads(post(server, "/stop_profile")[1])["file"])
        stream.close()
        events = json.loads(path.read_text())["traceEvents"]
        assert [event["name"] for event in events if event["ph"] == "e"][-2:] == ["decode", "request"]
        assert not list(tmp_path.glob("*.part"))
    finally:
        server.stop()


def test_without_the_config_there_are_no_such_routes(server):
    for path in ("/start_profile", "/stop_profile"):
        status, said = post(server, path)
        assert (status, said.replace(path, "/nothing")) == post(server, "/nothing") and status == 404


def test_a_folder_that_cannot_be_made_is_told_at_the_start():
    run = subprocess.run([PROGRAM, "serve", "--port", "0", "--load-format", "stand-in", *config("/proc/nowhere")], capture_output=True,
                         text=True, timeout=60)
    assert run.returncode == 1 and "--profiler-config torch_profiler_dir: /proc/nowhere" in run.stdout + run.stderr


def test_a_recording_that_cannot_be_written_stays_for_another_stop(tmp_path):
    folder = tmp_path / "made"
    server = Server(*config(folder), "--load-format", "stand-in")
    try:
        assert post(server, "/start_profile")[0] == 200
        time.sleep(0.3)  # of idle turns, which leave nothing
        folder.rmdir()
        folder.write_text("in the way")
        status, why = post(server, "/stop_profile")
        assert status == 503 and f"--profiler-config torch_profiler_dir: {folder}" in why
        assert server.says("could not be written")
        assert "ERROR" in next(line for line in server.text().splitlines() if "could not be written" in line)
        folder.unlink()
        status, said = post(server, "/stop_profile")
        assert status == 200 and pathlib.Path(json.loads(said)["file"]).exists() and json.loads(said)["events"] < 5
    finally:
        server.stop()


def test_an_engine_that_stands_still_is_not_waited_for_and_begins_nothing_later(tmp_path):
    server = Server(*config(tmp_path), "--load-format", "stand-in")
    try:
        os.kill(server.engine_pid(), signal.SIGSTOP)
        start = time.monotonic()
        status, why = post(server, "/start_profile")
        assert status == 503 and "not answering" in why and time.monotonic() - start < 5
        os.kill(server.engine_pid(), signal.SIGCONT)
        status, why = post(server, "/stop_profile")
        assert status == 400 and "POST /start_profile begins one" in why
    finally:
        server.stop()


def test_answers_go_to_those_who_asked(tmp_path):
    server = Server(*config(tmp_path), "--load-format", "stand-in")
    try:
        said = []
        for _ in range(10):
            assert post(server, "/start_profile") == (200, "")
            asked = [threading.Thread(target=lambda path: said.append((path, *post(server, path))), args=(path,))
                     for path in ("/stop_profile", "/start_profile", "/stop_profile", "/start_profile")]
            for thread in asked:
                thread.start()
            for thread in asked:
                thread.join(30)
            post(server, "/stop_profile")
        assert any(status == 400 for _, status, _ in said)
        for path, status, text in said:  # a file for a stop alone
            assert (status == 200 and (text == "") == (path == "/start_profile")) or status == 400, (path, status, text)
    finally:
        server.stop()
