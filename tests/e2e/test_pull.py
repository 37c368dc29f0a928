"""`baltoro pull` against a hub that misbehaves, and beside huggingface_hub: each finds what the other one fetched."""
import contextlib
import json
import os
import pathlib
import random
import resource
import signal
import subprocess
import sys
import threading
import time

import pytest

from conftest import PROGRAM, ROOT
from hub import COMMIT, Hub, file_per_layer, sha256
from nodes import SMALL, Head, Node, free_port

REPO = "org/name"
BIG = random.Random(1).randbytes(3_000_000)
FILES = {"config.json": b'{"a": 1}\n', "sub/notes.txt": b"", "model.safetensors": BIG}
QUICK = ("--retry-wait", "0.02", "--part-size", "1M", "--max-workers", "4")


def environment(home, **more):
    clean = {key: value for key, value in os.environ.items()
             if not key.startswith(("HF_", "HUGGING", "VLLM_", "MODELSCOPE")) and not key.lower().endswith("_proxy")}
    return clean | {"HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"} | more


def start(hub, home, *flags, repo=REPO, env=None, **options):
    return subprocess.Popen([PROGRAM, "pull", repo, *QUICK, *flags], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            env=environment(home, **({"HF_ENDPOINT": hub.url} | (env or {}))), **options)


def pull(hub, home, *flags, expect=0, **options):
    process = start(hub, home, *flags, **options)
    out, err = process.communicate(timeout=60)
    assert process.returncode == expect, err
    return out.strip() if expect == 0 else err


def wait_until(condition, process, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "what the test waits for does not come"
        time.sleep(0.02)


def texts(folder):
    folder = pathlib.Path(folder)
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*")
            if path.is_file() and ".cache" not in path.relative_to(folder).parts}


def partials(folder):
    return [path for path in pathlib.Path(folder).rglob("*.baltoro*")]


def python(code, home, hub, **env):
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
                         env=environment(home, HF_ENDPOINT=hub.url, **env))
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


@pytest.fixture
def hub():
    with Hub(FILES, {"model.safetensors"}) as running:
        yield running


def test_huggingface_hub_finds_what_was_pulled(hub, tmp_path):
    snapshot = pull(hub, tmp_path)
    assert texts(snapshot) == FILES and snapshot.endswith(f"models--org--name/snapshots/{COMMIT}")
    assert not partials(tmp_path)
    code = f"import huggingface_hub as h; print(h.snapshot_download({REPO!r}, local_files_only=True))"
    assert python(code, tmp_path, hub) == snapshot
    before = len(hub.file_requests())
    assert python(code.replace(", local_files_only=True", ""), tmp_path, hub) == snapshot
    assert len(hub.file_requests()) == before


def test_what_huggingface_hub_fetched_is_found(hub, tmp_path):
    snapshot = python(f"import huggingface_hub as h; print(h.snapshot_download({REPO!r}))", tmp_path, hub)
    before = len(hub.file_requests())
    assert pull(hub, tmp_path) == snapshot
    assert len(hub.file_requests()) == before


def test_a_local_folder_is_one_for_both(hub, tmp_path):
    folder = tmp_path / "model"
    assert pull(hub, tmp_path, "--local-dir", str(folder)) == str(folder)
    assert texts(folder) == FILES
    before = len(hub.file_requests())
    code = f"import huggingface_hub as h; print(h.snapshot_download({REPO!r}, local_dir={str(folder)!r}))"
    assert python(code, tmp_path, hub) == str(folder)
    assert len(hub.file_requests()) == before
    other = tmp_path / "other"
    python(code.replace(str(folder), str(other)), tmp_path, hub)
    before = len(hub.file_requests())
    pull(hub, tmp_path, "--local-dir", str(other))
    assert len(hub.file_requests()) == before and texts(other) == FILES
    # Damaged since, with the same length: it is read, and fetched again.
    (other / "config.json").write_bytes(b'{"b": 1}\n')
    os.utime(other / "config.json", (time.time() + 60, time.time() + 60))
    pull(hub, tmp_path, "--local-dir", str(other))
    assert texts(other) == FILES


def test_serve_finds_it_and_names_the_command_otherwise(tmp_path):
    files = {path.name: path.read_bytes() for path in (ROOT / "pocket/model").iterdir()}
    with Hub(files, {name for name in files if name.endswith(".safetensors")}) as hub:
        words = [PROGRAM, "plan", REPO, "--device", "cpu"]
        env = environment(tmp_path, HF_ENDPOINT=hub.url)
        missing = subprocess.run([PROGRAM, "serve", *words[2:]], capture_output=True, text=True, env=env)
        assert missing.returncode == 1 and f"`baltoro pull {REPO}`" in missing.stderr
        pull(hub, tmp_path)
        found = subprocess.run(words, capture_output=True, text=True, env=env)
        assert found.returncode == 0 and found.stdout.startswith("Fits: ")


def test_files_of_the_same_content_are_fetched_once_into_the_cache(tmp_path):
    files = {"a/__init__.py": b"", "b/__init__.py": b"", "one.bin": BIG, "two.bin": BIG}
    with Hub(files, {"one.bin", "two.bin"}) as hub:
        for more in ((), ("--force-download",)):
            before = hub.bytes_sent
            process = start(hub, tmp_path, *more)
            out, err = process.communicate(timeout=60)
            assert process.returncode == 0 and texts(out.strip()) == files, err
            assert "to fetch: 2 files, 3.0 MB (and 2 files equal to them)" in err
            assert hub.bytes_sent - before == len(BIG) and not partials(tmp_path)
        assert texts(pull(hub, tmp_path, "--local-dir", str(tmp_path / "x"))) == files


def test_a_terminal_that_went_does_not_end_it(hub, tmp_path):
    hub.refusals = [(503, {}), (503, {})]  # which would be told
    read, write = os.pipe()
    os.close(read)
    words = [PROGRAM, "pull", REPO, *QUICK]
    ran = subprocess.run(words, env=environment(tmp_path, HF_ENDPOINT=hub.url), stdout=subprocess.PIPE, stderr=write, timeout=60)
    assert ran.returncode == 0 and texts(ran.stdout.decode().strip()) == FILES
    ran = subprocess.run(words, env=environment(tmp_path, HF_ENDPOINT=hub.url), stdout=write, stderr=subprocess.PIPE, timeout=60)
    os.close(write)
    assert ran.returncode == 1 and b"standard output: Broken pipe; all files are in " in ran.stderr


def test_a_connection_that_drops_is_taken_up_again(hub, tmp_path):
    hub.drop_after, hub.drops = 200_000, 6
    snapshot = pull(hub, tmp_path)
    assert texts(snapshot) == FILES
    assert hub.bytes_sent < len(BIG) + 600_000  # nothing much came twice
    assert any(one[2].get("Range", "").split("=")[-1].split("-")[0] not in ("", "0", "1048576", "2097152")
               for one in hub.file_requests())


def test_a_server_that_always_drops_is_given_up(hub, tmp_path):
    hub.drop_after, hub.drops = 0, 10**9
    err = pull(hub, tmp_path, "--retries", "2", expect=1)
    assert "given up after 3 attempts (--retries)" in err and "attempt 2 of 3" in err


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT, signal.SIGHUP])
def test_another_process_goes_on_where_one_ended(hub, tmp_path, signum):
    hub.chunk_pause = 0.15
    process = start(hub, tmp_path, "--max-workers", "2")
    wait_until(lambda: hub.bytes_sent >= 1_200_000, process)
    time.sleep(1)  # the record is made once a second
    process.send_signal(signum)
    _, err = process.communicate(timeout=10)
    if signum != signal.SIGKILL:
        assert process.returncode == 130 and "the same command goes on" in err
    assert partials(tmp_path)
    hub.chunk_pause, before = 0, hub.bytes_sent
    assert texts(pull(hub, tmp_path)) == FILES
    assert hub.bytes_sent - before < len(BIG) - 800_000 and not partials(tmp_path)


def test_ranges_are_not_needed(hub, tmp_path):
    hub.ignore_range = True
    assert texts(pull(hub, tmp_path)) == FILES
    # Workers that are free look for parts while one waits for the others to leave the file.
    assert texts(pull(hub, tmp_path, "--part-size", "64K", "--max-workers", "16", "--local-dir", str(tmp_path / "y"))) == FILES
    hub.drop_after, hub.drops = 500_000, 1
    assert texts(pull(hub, tmp_path, "--local-dir", str(tmp_path / "x"))) == FILES


def test_a_wrong_sum_is_told_and_nothing_is_left(hub, tmp_path):
    listing = hub.siblings()
    listing["siblings"][-1]["lfs"]["sha256"] = "0" * 64
    hub.listing = json.dumps(listing).encode()
    err = pull(hub, tmp_path, expect=1)
    assert f"model.safetensors: what came has the sha256 {sha256(BIG)}, the listing says {'0' * 64}" in err
    assert "it is fetched once more" in err
    assert not partials(tmp_path) and not list(tmp_path.rglob("0" * 64))


def test_a_damaged_partial_file_is_fetched_once_more(hub, tmp_path):
    hub.drops, hub.drop_after = 10**9, 700_000
    pull(hub, tmp_path, "--retries", "0", expect=1)
    part, = [path for path in partials(tmp_path) if path.suffix == ".baltoro" and sha256(BIG) in path.name]
    with part.open("r+b") as file:
        file.write(b"damaged")
    hub.drops = 0
    assert texts(pull(hub, tmp_path)) == FILES


def test_a_server_that_wants_less_haste_is_given_time(hub, tmp_path):
    hub.refusals = [(429, {"Retry-After": "1"}), (503, {}), (500, {})]
    started = time.monotonic()
    assert texts(pull(hub, tmp_path, "--max-workers", "1")) == FILES
    assert time.monotonic() - started > 1


def test_a_gated_model_says_what_to_do(hub, tmp_path):
    hub.token = "hf_secret"
    err = pull(hub, tmp_path, expect=1)
    assert "gated" in err and f"{hub.url}/{REPO}" in err and "HF_TOKEN" in err
    err = pull(hub, tmp_path, "--token", "hf_other", expect=1)
    assert "does not open this model" in err and "hf_other" not in err
    assert texts(pull(hub, tmp_path, env={"HF_TOKEN": "hf_secret"})) == FILES
    (tmp_path / ".cache/huggingface").mkdir(parents=True, exist_ok=True)
    (tmp_path / ".cache/huggingface/token").write_text("hf_secret\n")
    assert texts(pull(hub, tmp_path, "--local-dir", str(tmp_path / "x"))) == FILES
    assert pull(hub, tmp_path, "--token", "a\nb: c", expect=1).count("has characters that none has") == 1


def test_the_token_stays_with_the_hub(hub, tmp_path):
    with Hub(FILES, {"model.safetensors"}) as cdn:
        hub.cdn, hub.token = cdn, "hf_secret"
        assert texts(pull(hub, tmp_path, "--token", "hf_secret")) == FILES
        assert len(cdn.requests) >= 3
        assert not any("hf_secret" in str(one) for one in cdn.requests)
        assert all(one[2].get("Authorization") == "Bearer hf_secret" for one in hub.requests)


def test_redirects_end(hub, tmp_path):
    hub.cdn = hub
    assert "more than 10 redirects" in pull(hub, tmp_path, expect=1)


def test_a_stalled_connection_is_given_up(hub, tmp_path):
    hub.stall = True
    err = pull(hub, tmp_path, "--stall-timeout", "1", "--retries", "0", expect=1)
    assert "too slow" in err


@pytest.mark.parametrize("lie", [-1000, 1000])
def test_lengths_that_lie(hub, tmp_path, lie):
    hub.length_lie = lie
    flags = ("--retries", "1", "--stall-timeout", "2", "--part-size", "16M")
    err = pull(hub, tmp_path, *flags, expect=1)
    assert "the listing says" in err
    hub.length_lie = 0
    assert texts(pull(hub, tmp_path)) == FILES


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "a/../../evil", "a\\..\\evil", ".cache/huggingface/x", ".git/hooks/evil", "sub/.Git/evil",
                                  "\u202elive", "a\x9b2Jevil"])
def test_names_that_lead_elsewhere_are_refused(hub, tmp_path, name):
    hub.files[name] = b"evil"
    err = pull(hub, tmp_path, "--local-dir", str(tmp_path / "sub/model"), expect=1)
    assert "nothing is downloaded" in err and not hub.file_requests()
    assert not list(tmp_path.rglob("*evil*"))


@pytest.mark.parametrize("listing, sentence", [
    (b'{"sha": "' + b"x" * (33 << 20), "is longer than"),
    (b'{"sha": "c0ff', "no JSON"),
    (b"[]", "no JSON object"),
    (json.dumps({"sha": COMMIT, "siblings": [{"rfilename": "x", "size": 1 << 45, "blobId": "1" * 40}]}).encode(), "need 35184.37 GB"),
])
def test_listings_that_are_none(hub, tmp_path, listing, sentence):
    hub.listing = listing
    err = pull(hub, tmp_path, expect=1)
    assert sentence in err and not hub.file_requests()


def test_what_a_hub_says_does_not_drive_the_terminal(hub, tmp_path):
    hub.token, hub.denial = "secret", "no\x7f\x9b31m\x1b[2J\u202e way"
    err = pull(hub, tmp_path, expect=1)
    assert "(no  31m [2J  way)" in err


def test_a_header_that_is_a_file_of_the_repository_stays(hub, tmp_path):
    hub.files = {**FILES, "model.safetensors.header": b"its own"}
    for _ in range(2):
        folder = pull(hub, tmp_path, "--local-dir", str(tmp_path / "model"))
        assert texts(folder) == hub.files


def test_a_file_that_changed_between_two_attempts_begins_anew(hub, tmp_path):
    hub.etags["model.safetensors"] = "first"
    hub.drops, hub.drop_after = 10**9, 300_000
    pull(hub, tmp_path, "--retries", "0", expect=1)
    hub.etags["model.safetensors"] = "second"
    hub.drops = 0
    process = start(hub, tmp_path)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and "it has changed on the server (ETag)" in err
    assert texts(out.strip()) == FILES


def test_what_was_begun_of_another_content_is_not_continued(hub, tmp_path):
    hub.drops, hub.drop_after = 10**9, 300_000
    pull(hub, tmp_path, "--local-dir", str(tmp_path / "x"), "--retries", "0", expect=1)
    hub.drops = 0
    hub.files["model.safetensors"] = BIG[::-1]
    pull(hub, tmp_path, "--local-dir", str(tmp_path / "x"))
    assert texts(tmp_path / "x") == {**FILES, "model.safetensors": BIG[::-1]}


def test_a_full_disk_is_named(hub, tmp_path):
    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, 1_500_000))
    err = pull(hub, tmp_path, expect=1, preexec_fn=small_files)
    assert "File too large" in err and "model" in err or sha256(BIG) in err


def test_choices_and_a_dry_run(hub, tmp_path):
    process = start(hub, tmp_path, "--dry-run", "--exclude", "*.safetensors")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and out == ""
    assert "fetch        9 bytes  config.json" in err and "to fetch: 2 files, 9 bytes; free at " in err
    assert not (tmp_path / ".cache").exists() and not hub.file_requests()
    (tmp_path / "y").mkdir()
    (tmp_path / "y/config.json").write_bytes(FILES["config.json"])  # is read, and nothing is written about it
    pull(hub, tmp_path, "--dry-run", "--local-dir", str(tmp_path / "y"))
    assert [path.name for path in (tmp_path / "y").iterdir()] == ["config.json"]
    assert set(texts(pull(hub, tmp_path, "--include", "*.json", "sub/"))) == {"config.json", "sub/notes.txt"}
    assert "has no file nothing" in pull(hub, tmp_path, "nothing", expect=1)
    assert set(texts(pull(hub, tmp_path, "config.json", "--local-dir", str(tmp_path / "x")))) == {"config.json"}
    assert "is no branch, tag or commit" in pull(hub, tmp_path, "--revision", "v9", expect=1)
    pull(hub, tmp_path, "--revision", "v1", "config.json")
    assert (tmp_path / ".cache/huggingface/hub/models--org--name/refs/v1").read_text() == COMMIT


def test_connections_are_bounded_and_one_process_writes(hub, tmp_path):
    hub.gate = threading.Event()
    process = start(hub, tmp_path, "--max-workers", "3")
    wait_until(lambda: hub.at_once == 3, process)
    assert "another baltoro pull is at work there" in pull(hub, tmp_path, expect=1)
    hub.gate.set()
    assert process.wait(60) == 0
    assert hub.at_once_max in (3, 4)  # and the list of the second one


def test_a_proxy_of_the_environment_is_used(hub, tmp_path):
    env = {"http_proxy": hub.url, "HF_ENDPOINT": "http://hub.invalid"}
    process = subprocess.run([PROGRAM, "pull", REPO, *QUICK], capture_output=True, text=True,
                             env=environment(tmp_path, **env), timeout=60)
    assert process.returncode == 0, process.stderr
    assert texts(process.stdout.strip()) == FILES and hub.requests[0][2]["Host"] == "hub.invalid"


def test_modelscope(hub, tmp_path):
    env = {"MODELSCOPE_DOMAIN": hub.url, "MODELSCOPE_API_TOKEN": "ms-1", "VLLM_USE_MODELSCOPE": "true"}
    hub.token, hub.repo = "ms-1", "org/name-2.5"
    folder = pull(hub, tmp_path, repo=hub.repo, env=env)
    assert folder == str(tmp_path / ".cache/modelscope/hub/models/org/name-2___5") and texts(folder) == FILES
    assert hub.requests[0][1].endswith("Revision=master&Recursive=true")
    assert hub.requests[0][2]["Cookie"] == "m_session_id=ms-1"
    before = len(hub.file_requests())
    assert pull(hub, tmp_path, "--source", "modelscope", repo=hub.repo, env=env) == folder
    assert len(hub.file_requests()) == before


def test_a_hub_that_is_not_there_is_given_up_soon(hub, tmp_path):
    err = pull(hub, tmp_path, expect=1, env={"HF_ENDPOINT": "http://127.0.0.1:1"})
    assert "given up after 3 attempts" in err and "https_proxy" in err
    assert "expected a URL" in pull(hub, tmp_path, expect=1, env={"HF_ENDPOINT": "hub.example"})


def test_offline_is_offline(hub, tmp_path):
    assert "HF_HUB_OFFLINE" in pull(hub, tmp_path, expect=1, env={"HF_HUB_OFFLINE": "1"})
    assert not hub.requests


LAYOUT = ("-pp", "2", "--nnodes", "2")


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    """The pocket model, a file a layer, in a folder for each of two nodes, with what the downloads said."""
    files, weights = file_per_layer(ROOT / "pocket/model")
    home = tmp_path_factory.mktemp("halves")
    with Hub(files, weights) as hub:
        said = []
        for node in (0, 1):
            process = start(hub, home, *LAYOUT, "--node-rank", str(node), "--local-dir", str(home / str(node)))
            said.append(process.communicate(timeout=60)[1])
            assert process.returncode == 0, said
        yield home, said, weights


def test_headers_over_one_connection_and_files_of_other_nodes_as_the_listing_says(tmp_path):
    files, weights = file_per_layer(ROOT / "pocket/model")
    folder, flags = tmp_path / "x", (*LAYOUT, "--node-rank", "0", "--local-dir", str(tmp_path / "x"))
    with Hub(files, weights) as hub:
        folder.mkdir()
        (folder / "model-embed.safetensors").write_bytes(b"cut")
        err = pull(hub, tmp_path, *flags, expect=1)
        size = len(files["model-embed.safetensors"])
        assert f"model-embed.safetensors has 3 bytes, the listing says {size}: remove it" in err and "interrupted" not in err
        (folder / "model-embed.safetensors").unlink()
        before = hub.connections
        pull(hub, tmp_path, *flags)
        assert len(list(folder.glob("*.header"))) >= 2
        assert hub.connections - before <= 1 + 4  # of QUICK's workers, and the one of listing and headers


def test_a_node_fetches_what_its_ranks_read(halves):
    home, said, weights = halves
    here = [{name for name in texts(home / str(node)) if name.endswith(".safetensors")} for node in (0, 1)]
    assert here[0] | here[1] == weights and not here[0] & here[1]
    assert "model-head.safetensors" in here[0] and "model-embed.safetensors" in here[1]
    for node in (0, 1):
        headers = {name.removesuffix(".header") for name in texts(home / str(node)) if name.endswith(".header")}
        assert headers == weights - here[node]
        assert f"left out: {len(headers)} files, " in said[node] and f"no rank of node {node} of 2 reads" in said[node]


def test_two_nodes_serve_from_their_halves(halves):
    home, _, _ = halves
    flags = (*SMALL, *LAYOUT, "--served-model-name", "pocket", "--master-addr", "127.0.0.1", "--master-port", str(free_port()))
    with contextlib.ExitStack() as stack:
        node = Node(str(home / "1"), *flags, "--node-rank", "1", "--headless")
        stack.callback(node.stop)
        head = Head(str(home / "0"), *flags, "--node-rank", "0")
        stack.callback(head.stop)
        head.wait_ready()
        question = dict(model="pocket", prompt="What is 3 + 4?", temperature=0, max_tokens=16)
        answer = head.client().completions.create(**question).choices[0].text
    whole = Head(*SMALL, "--served-model-name", "pocket")
    whole.wait_ready()
    try:
        assert whole.client().completions.create(**question).choices[0].text == answer
    finally:
        whole.stop()


def test_another_layout_is_refused_with_the_command(halves):
    home, _, _ = halves
    ran = subprocess.run([PROGRAM, "serve", str(home / "0"), *SMALL, "--port", "0"], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1 and "only its header is here" in ran.stderr and "baltoro pull" in ran.stderr
    ran = subprocess.run([PROGRAM, "inspect", str(home / "0")], capture_output=True, text=True)
    assert ran.returncode == 1 and "only its header is here" in ran.stdout
