"""What is wrong with the files, the flags or the machine is said at the start, with what to do about it."""
import gzip
import json
import os
import pathlib
import resource
import shutil
import socket
import subprocess
import urllib.error
import urllib.request

import pytest

from conftest import PROGRAM, ROOT, Server

POCKET = ROOT / "pocket/model"
MODEL_FILES = sorted(path.name for path in POCKET.iterdir())


def run(*words, seconds=60, **options):
    """The exit code and all that was said. What waits for a file that never ends is stopped."""
    env = {**os.environ, "HF_HOME": "/nowhere"}
    done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=seconds, env=env, check=False,
                          **options)
    return done.returncode, done.stdout + done.stderr


def serve(*words, **options):
    return run("serve", *words, "--host", "127.0.0.1", "--port", "0", **options)


@pytest.fixture
def model(tmp_path):
    """A folder of the pocket model's files, as links."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in MODEL_FILES:
        (folder / name).symlink_to(POCKET / name)
    return folder


def be_fifo(path):
    os.mkfifo(path)


def be_device(path):
    path.symlink_to("/dev/zero")


def be_directory(path):
    path.mkdir()


@pytest.mark.parametrize("name", MODEL_FILES)
@pytest.mark.parametrize("become, kind", [(be_fifo, "a FIFO"), (be_device, "a device"), (be_directory, "a directory")])
def test_what_is_no_file_in_a_model_is_refused_at_once(model, tmp_path, name, become, kind):
    (model / name).unlink()
    become(model / name)
    said = f"{model / name}: is {kind}, not a regular file"
    code, text = serve(str(model))
    assert code == 1 and said in text
    readers = {"config.json": ("inspect", "plan", "quantize"),
               "model.safetensors.index.json": ("inspect", "plan", "quantize")}
    if name.endswith(".safetensors"):
        readers[name] = ("inspect", "quantize")
    for command in readers.get(name, ()):
        words = [command, str(model)]
        if command == "quantize":
            words += [str(tmp_path / "out"), "--format", "fp8"]
        code, text = run(*words)
        # A report is of one folder, which it names once.
        assert code != 0 and (said if command != "inspect" else f"{name}: is {kind}, not a regular file") in text, command


@pytest.mark.parametrize("flag", ["--chat-template", "--api-key-file", "--config", "--quantization-param-path"])
def test_files_of_flags_are_refused_with_the_flag(tmp_path, flag):
    suffix = ".yaml" if flag == "--config" else ""
    more = ["--kv-cache-dtype", "fp8"] if flag == "--quantization-param-path" else []
    fifo, none, folder = (tmp_path / (name + suffix) for name in ("fifo", "none", "folder"))
    be_fifo(fifo)
    be_directory(folder)
    for path, reason in ((fifo, "is a FIFO"), (none, "No such file or directory"), (folder, "is a directory")):
        code, text = serve(flag, str(path), *more)
        assert code in (1, 2) and f"{flag} {path}: {reason}" in text


def test_files_of_eval_are_files(tmp_path):
    be_fifo(tmp_path / "fifo")
    for flag in ("--cases", "--loglik"):
        code, text = run("eval", flag, str(tmp_path / "fifo"))
        assert code != 0 and f"{flag} {tmp_path / 'fifo'}: is a FIFO" in text
        (tmp_path / "half.gz").write_bytes(gzip.compress(b'{"id": 1}\n' * 100)[:-9])
        code, text = run("eval", flag, str(tmp_path / "half.gz"))
        assert code != 0 and f"{flag} {tmp_path / 'half.gz'}: is a gzip archive whose end is missing" in text


def test_a_template_is_a_file_or_has_brackets(tmp_path):
    code, text = serve("--chat-template", "{% for m in messages %}{{ m")
    assert code == 1 and "--chat-template: " in text
    (tmp_path / "broken.jinja").write_text("{% if %}")
    code, text = serve("--chat-template", str(tmp_path / "broken.jinja"))
    assert code == 1 and f"--chat-template {tmp_path / 'broken.jinja'}: " in text
    server = Server("--chat-template", "{% for m in messages %}{{ m.content }}{% endfor %}")
    assert server.stop() == 0


@pytest.mark.parametrize("flag, file", [("--tokenizer", "tiktoken.model"), ("--generation-config", "generation_config.json")])
def test_folders_of_flags_hold_what_they_are_for(tmp_path, flag, file):
    code, text = serve(flag, str(tmp_path / "none"))
    assert code == 1 and f"{flag} {tmp_path / 'none'}: no such directory" in text
    code, text = serve(flag, str(tmp_path))
    assert code == 1 and f"{flag} {tmp_path}: there is no {file} in it" in text


def test_a_vocabulary_is_there_and_fits(model):
    name = model / "tiktoken.model"
    name.unlink()
    code, text = serve(str(model))
    assert code == 1 and f"{model}: there is no tiktoken.model" in text and "--skip-tokenizer-init" in text
    name.write_text("no base64\n")
    code, text = serve(str(model))
    assert code == 1 and f"{name}:1: expected base64" in text
    name.write_text("".join(f"{word} {rank}\n" for rank, word in enumerate(["YQ==", "Yg=="])))
    code, text = serve(str(POCKET), "--tokenizer", str(model))
    assert code == 1 and f"--tokenizer {model}" in text


def ask(server, path, body):
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}


def test_without_a_vocabulary_tokens_are_served(model):
    (model / "tiktoken.model").unlink()
    server = Server(str(model), "--skip-tokenizer-init", "--served-model-name", "m")
    try:
        status, answer = ask(server, "/v1/completions", {"model": "m", "prompt": [5, 6, 7], "max_tokens": 4,
                                                         "ignore_eos": True, "return_token_ids": True})
        assert status == 200 and len(answer["choices"][0]["token_ids"]) == 4
        assert ask(server, "/v1/chat/completions", CHAT)[0] == 400
    finally:
        server.stop()


def test_without_a_template_the_start_says_so_and_chat_too(model):
    (model / "chat_template.jinja").unlink()
    config = json.loads((model / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (model / "tokenizer_config.json").unlink()
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    server = Server(str(model), "--served-model-name", "m")
    try:
        assert server.says("model has no chat template") and server.text().count("model has no chat template") == 1
        status, answer = ask(server, "/v1/chat/completions", CHAT)
        assert status == 400 and "this model has no chat template" in answer["error"]["message"]
        assert ask(server, "/v1/completions", {"model": "m", "prompt": "Hello", "max_tokens": 2})[0] == 200
    finally:
        server.stop()


def test_a_port_in_use_names_the_flag():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, text = run("serve", "--host", "127.0.0.1", "--port", str(port))
    assert code == 1 and f"127.0.0.1:{port}: Address already in use; --port N takes another port" in text


def test_models_that_are_not_here_say_how_to_get_them(tmp_path):
    (tmp_path / "Kimi-K2.5").mkdir()
    for model, said in (("moonshotai/Kimi-K2.5", "`baltoro pull moonshotai/Kimi-K2.5`, then serve moonshotai/Kimi-K2.5"),
                        ("kimi-k2.5", "`baltoro pull moonshotai/Kimi-K2.5`"),
                        ("someone/else", "`baltoro pull someone/else`"),
                        (str(tmp_path / "Kimi-K2.5"), "no config.json"),
                        (str(tmp_path / "Kimi-K2.5"), f"`baltoro pull moonshotai/Kimi-K2.5 --local-dir {tmp_path}/Kimi-K2.5`")):
        code, text = serve(model)
        assert code == 1 and said in text, text


def test_a_download_that_is_not_complete(model):
    shard = next(name for name in MODEL_FILES if name.endswith(".safetensors"))
    (model / shard).unlink()
    code, text = serve(str(model))
    assert code == 1 and "the download is not complete" in text and shard in text


def test_a_length_that_does_not_fit_names_the_largest():
    code, text = serve("--max-model-len", "100k", "--kv-cache-memory-bytes", "1M")
    assert code == 1 and "--max-model-len" in text
    longest = json.loads((POCKET / "config.json").read_text())["text_config"]["max_position_embeddings"]
    code, text = serve("--max-model-len", str(longest + 1))
    assert code == 1 and f"--max-model-len {longest}" in text


@pytest.mark.parametrize("words, meant", [(["sreve"], "serve"), (["bench", "trhoughput"], "throughput"),
                                          (["serve", "--max-modl-len", "5"], "--max-model-len"),
                                          (["serve", "--device", "cpuu"], "cpu"),
                                          (["serve", "--kv-cache-dtype", "fp8_e4m"], "fp8_e4m3")])
def test_slips_name_the_nearest_word(words, meant):
    code, text = run(*words)
    assert code == 2 and "did you mean" in text and meant in text.split("did you mean")[1][:40]


@pytest.mark.parametrize("mib", [60, 150, 200, 215, 240, 270, 300, 350])
@pytest.mark.parametrize("flags", [[], ["--engine-in-process"]])
def test_too_little_memory_is_refused(mib, flags):
    """Whatever it is that finds none: the plan, a buffer, an allocation of a library, a thread."""
    bytes_max = mib << 20
    code, text = serve("--max-model-len", "512", "--cpu-threads", "2", *flags,
                       preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (bytes_max, bytes_max)))
    assert code == 1, text
    assert not any(word in text for word in ("check failed", "terminate called", "signal 6"))
    assert any(word in text for word in ("memory", "more than the"))
