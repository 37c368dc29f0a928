"""Pictures through the clients of OpenAI and Anthropic, with a model of random weights that has the pocket model's tokens: what it says means
nothing, but it depends on what a picture shows, and on nothing else."""
import base64
import json
import shutil
import struct
import urllib.error
import urllib.request
import zlib
from pathlib import Path

import anthropic
import openai
import pytest

from conftest import ROOT, Server
from nodes import Cluster

VISION = {"init_pos_emb_height": 16, "init_pos_emb_width": 16, "init_pos_emb_time": 4, "merge_kernel_size": [2, 2], "merge_type": "sd2_tpool",
          "mm_hidden_size": 64, "mm_projector_type": "patchmerger", "patch_size": 14, "pos_emb_type": "divided_fixed",
          "projector_hidden_act": "gelu", "projector_ln_eps": 1e-5, "text_hidden_size": 64, "video_attn_type": "spatial_temporal",
          "vt_hidden_size": 64, "vt_intermediate_size": 96, "vt_num_attention_heads": 4, "vt_num_hidden_layers": 3}
RULES = {"media_proc_cfg": {"in_patch_limit": 16384, "patch_size": 14, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
                            "merge_kernel_size": 2, "fixed_output_tokens": None, "patch_limit_on_one_side": 512}}


def png(width, height, colour):
    """Of one colour with a brighter corner, so that places count too."""
    rows = b"".join(b"\0" + bytes(colour) * width if y else b"\0" + b"\xff\xff\xff" + bytes(colour) * (width - 1) for y in range(height))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def encoded(picture):
    return base64.b64encode(picture).decode()


def part(picture):
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + encoded(picture)}}


RED, BLUE = png(280, 140, (200, 10, 10)), png(280, 140, (10, 10, 200))  # 20 x 10 patches: 50 tokens


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sees")
    for name in ("tiktoken.model", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(ROOT / "pocket/model" / name, folder)
    config = json.loads((ROOT / "pocket/model/config.json").read_text())
    config["text_config"].update(hidden_size=64, intermediate_size=128, moe_intermediate_size=32, num_hidden_layers=2, n_routed_experts=4,
                                 num_experts_per_tok=2, num_attention_heads=2, num_key_value_heads=2, q_lora_rank=32,
                                 max_position_embeddings=16384, rope_scaling=None)
    config["vision_config"] = VISION
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(RULES))
    return str(folder)


@pytest.fixture(scope="module", params=[[], ["--dtype", "float32", "-tp", "2", "-pp", "2"], ["-tp", "2", "--mm-encoder-tp-mode", "data"]],
                ids=["one", "tp2-pp2", "tp2-data"])
def server(model, request):
    running = Server(model, "--load-format", "dummy", "--device", "cpu", "--served-model-name", "sees", *request.param)
    yield running
    assert running.stop() == 0


def ask(server, *content, **more):
    return server.client().chat.completions.create(
        model="sees", temperature=0, max_tokens=5, logprobs=True, messages=[{"role": "user", "content": list(content)}], **more)


def said(answer):
    return [(one.token, one.logprob) for one in answer.choices[0].logprobs.content]


TEXT = {"type": "text", "text": "What is this?"}


def test_an_answer_depends_on_what_a_picture_shows(server):
    text = ask(server, TEXT)
    red, blue = ask(server, part(RED), TEXT), ask(server, part(BLUE), TEXT)
    assert red.usage.prompt_tokens == blue.usage.prompt_tokens > text.usage.prompt_tokens + 50
    assert said(red) != said(blue)
    assert [token for token, _ in said(ask(server, part(RED), TEXT))] == [token for token, _ in said(red)]
    assert said(ask(server, part(RED), part(BLUE), TEXT)) != said(ask(server, part(BLUE), part(RED), TEXT))


def test_the_same_picture_is_found_in_the_prefix_cache_and_another_is_not(server):
    large = [png(560, 560, colour) for colour in ((1, 2, 3), (3, 2, 1))]  # 400 tokens
    ask(server, part(large[0]), TEXT)
    again, other = ask(server, part(large[0]), TEXT), ask(server, part(large[1]), TEXT)
    assert again.usage.prompt_tokens_details.cached_tokens >= 384
    assert other.usage.prompt_tokens_details.cached_tokens < 64


def test_streamed_it_is_the_same(server):
    whole = said(ask(server, part(RED), TEXT))
    streamed = [(one.token, one.logprob) for chunk in ask(server, part(RED), TEXT, stream=True) if chunk.choices and chunk.choices[0].logprobs
                for one in chunk.choices[0].logprobs.content]
    assert [token for token, _ in streamed] == [token for token, _ in whole]


def test_the_other_apis_take_the_same_picture(server):
    tokens = ask(server, part(RED), TEXT).usage.prompt_tokens
    answer = server.client().responses.create(model="sees", max_output_tokens=5, temperature=0, input=[{"role": "user", "content": [
        {"type": "input_image", "image_url": "data:image/png;base64," + encoded(RED), "detail": "auto"},
        {"type": "input_text", "text": TEXT["text"]}]}])
    assert answer.usage.input_tokens == tokens
    client = anthropic.Anthropic(base_url=server.url, api_key="none")
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": encoded(RED)}}
    message = client.messages.create(model="sees", max_tokens=5, messages=[{"role": "user", "content": [image, TEXT]}])
    assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) == tokens
    # As what a tool gave.
    call = {"id": "functions.look:0", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    history = [{"role": "user", "content": "Look."}, {"role": "assistant", "content": None, "tool_calls": [call]},
               {"role": "tool", "tool_call_id": call["id"], "content": [part(RED)]}]
    given = server.client().chat.completions.create(model="sees", max_tokens=5, messages=history)
    assert given.usage.prompt_tokens > 50


@pytest.mark.parametrize("url, why", [
    ("data:image/png;base64,!!!!", "base64"), ("data:image/png;base64," + encoded(RED[:200]), "picture"),
    ("data:text/plain;base64,aGVsbG8=", ""), ("http://127.0.0.1:1/x.png", ""), ("file:///etc/passwd", "--allowed-local-media-path"),
    ("data:image/png;base64," + encoded(png(28, 28, (0, 0, 0))[:33].replace(struct.pack(">II", 28, 28), struct.pack(">II", 100000, 100000))), "")])
def test_what_is_no_picture_is_refused_by_its_place(server, url, why):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(server, TEXT, {"type": "image_url", "image_url": {"url": url}})
    error = refused.value.body
    assert error["param"] == "messages[0].content[1].image_url" and why in error["message"]
    assert "0x" not in error["message"] and "/src/" not in error["message"]
    assert ask(server, part(RED), TEXT).usage.completion_tokens == 5


@pytest.mark.parametrize("mode", ["data", "weights"])
def test_ranks_in_several_processes_share_pictures_or_the_encoder(model, mode):
    """Each node is processes of its own: what they answer is what one rank answers."""
    content = (part(RED), part(BLUE), part(png(84, 56, (9, 9, 9))), TEXT)
    one = Server(model, "--load-format", "dummy", "--device", "cpu", "--dtype", "float32", "--served-model-name", "sees")
    try:
        wanted = said(ask(one, *content))
    finally:
        assert one.stop() == 0
    with Cluster(2, model, "--load-format", "dummy", "--served-model-name", "sees", "-tp", "2", "--mm-encoder-tp-mode", mode) as cluster:
        told = said(ask(cluster.head, *content))
    assert [token for token, _ in told] == [token for token, _ in wanted]
    assert [logprob for _, logprob in told] == pytest.approx([logprob for _, logprob in wanted], abs=1e-3)


def test_deterministic_answers_have_pictures(model):
    running = Server(model, "--load-format", "dummy", "--device", "cpu", "--served-model-name", "sees", "--deterministic")
    try:
        assert said(ask(running, part(RED), TEXT)) == said(ask(running, part(RED), TEXT)) != said(ask(running, part(BLUE), TEXT))
    finally:
        assert running.stop() == 0


def test_without_the_encoder_pictures_are_refused(model):
    running = Server(model, "--load-format", "dummy", "--device", "cpu", "--served-model-name", "sees", "--limit-mm-per-prompt", '{"image": 0}')
    try:
        with pytest.raises(openai.BadRequestError):
            ask(running, part(RED), TEXT)
        assert ask(running, TEXT).usage.completion_tokens == 5
    finally:
        assert running.stop() == 0


def test_the_file_about_pictures_is_read_where_pictures_are(model, tmp_path):
    """What it says is the encoder's matter: a model without one may have the file of another library, and one with an encoder none."""
    serve = ["--load-format", "dummy", "--device", "cpu", "--served-model-name", "sees"]
    config = json.loads((Path(model) / "config.json").read_text())
    rules = tmp_path / "seeing/preprocessor_config.json"
    shutil.copytree(model, tmp_path / "seeing")
    rules.write_text('{"crop_size": 224, "do_resize": true}')
    shutil.copytree(tmp_path / "seeing", tmp_path / "text")
    del config["vision_config"]
    (tmp_path / "text/config.json").write_text(json.dumps(config))
    for folder, flags in (("text", []), ("seeing", ["--language-model-only"])):
        running = Server(str(tmp_path / folder), *serve, *flags)
        try:
            assert ask(running, TEXT).usage.completion_tokens == 5
            with pytest.raises(openai.BadRequestError, match="reads text only"):
                ask(running, part(RED), TEXT)
        finally:
            assert running.stop() == 0
    stopped = Server(str(tmp_path / "seeing"), *serve, wait=False)
    assert stopped.process.wait(60) != 0
    assert stopped.says("preprocessor_config.json: ")
    rules.unlink()
    running = Server(str(tmp_path / "seeing"), *serve)
    try:
        assert said(ask(running, part(RED), TEXT)) != said(ask(running, part(BLUE), TEXT))
    finally:
        assert running.stop() == 0
