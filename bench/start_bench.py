#!/usr/bin/env python3
"""From the start of `baltoro serve` to the first token, for a checkpoint of any size.

    bench/start_bench.py --baltoro build/release/apps/baltoro --model DIR [--gb 12] [--form int4|bf16] [--starts 2] [-- FLAGS]

A DIR without config.json is first filled with random weights in the shapes of Kimi K2: one dense layer, one of as many experts as
fill --gb, the embedding and the head of the whole vocabulary. Tokenizer and template are those of --tokenizer. The bytes come through
the page cache, so that the files are hot. Everything after -- goes to `serve`.

Prints, for each start: seconds from the process's begin until /health is 200, and until the first token of a completion; the last
one's log, each line with the second at which it came; and, where PyTorch finds a GPU, what is wanted: the bytes by the rate of a
pinned copy to it, and 3 s.
"""
import argparse
import json
import pathlib
import random
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHARD_BYTES = 4 << 30
BLOCK_BYTES = 16 << 20
DTYPES = {"BF16": 2, "F32": 4, "I32": 4}


def text_config(experts, vocab):
    return {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2", "hidden_size": 7168, "num_hidden_layers": 2,
        "num_attention_heads": 64, "num_key_value_heads": 64, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048,
        "n_routed_experts": experts, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 1,
        "moe_layer_freq": 1, "n_group": 1, "topk_group": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
        "norm_topk_prob": True, "routed_scaling_factor": 2.827, "rms_norm_eps": 1e-5, "rope_theta": 50000.0,
        "rope_scaling": {"type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0,
                         "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0},
        "max_position_embeddings": 262144, "vocab_size": vocab, "bos_token_id": 2048, "eos_token_id": 2050, "hidden_act": "silu",
        "attention_bias": False, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    }


def tensors_of(config, int4):
    """(name, dtype, shape) in the order of the public files: by name."""
    c = config
    hidden, heads = c["hidden_size"], c["num_attention_heads"]
    out = []

    def plain(name, *shape):
        out.append((name, "BF16", shape))

    def mlp(prefix, width, packed):
        for name, rows, columns in (("down_proj", hidden, width), ("gate_proj", width, hidden), ("up_proj", width, hidden)):
            if packed:
                out.append((f"{prefix}{name}.weight_packed", "I32", (rows, columns // 8)))
                out.append((f"{prefix}{name}.weight_scale", "BF16", (rows, columns // 32)))
                out.append((f"{prefix}{name}.weight_shape", "I32", (2,)))
            else:
                plain(f"{prefix}{name}.weight", rows, columns)

    plain("lm_head.weight", c["vocab_size"], hidden)
    plain("model.embed_tokens.weight", c["vocab_size"], hidden)
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        mixer = layer + "self_attn."
        plain(layer + "input_layernorm.weight", hidden)
        if i < c["first_k_dense_replace"]:
            mlp(layer + "mlp.", c["intermediate_size"], False)
        else:
            for e in range(c["n_routed_experts"]):
                mlp(f"{layer}mlp.experts.{e}.", c["moe_intermediate_size"], int4)
            out.append((layer + "mlp.gate.e_score_correction_bias", "F32", (c["n_routed_experts"],)))
            plain(layer + "mlp.gate.weight", c["n_routed_experts"], hidden)
            mlp(layer + "mlp.shared_experts.", c["moe_intermediate_size"] * c["n_shared_experts"], False)
        plain(layer + "post_attention_layernorm.weight", hidden)
        plain(mixer + "kv_a_layernorm.weight", c["kv_lora_rank"])
        plain(mixer + "kv_a_proj_with_mqa.weight", c["kv_lora_rank"] + c["qk_rope_head_dim"], hidden)
        plain(mixer + "kv_b_proj.weight", heads * (c["qk_nope_head_dim"] + c["v_head_dim"]), c["kv_lora_rank"])
        plain(mixer + "o_proj.weight", hidden, heads * c["v_head_dim"])
        plain(mixer + "q_a_layernorm.weight", c["q_lora_rank"])
        plain(mixer + "q_a_proj.weight", c["q_lora_rank"], hidden)
        plain(mixer + "q_b_proj.weight", heads * (c["qk_nope_head_dim"] + c["qk_rope_head_dim"]), c["q_lora_rank"])
    plain("model.norm.weight", hidden)
    return out


def size_of(tensor):
    size = DTYPES[tensor[1]]
    for dim in tensor[2]:
        size *= dim
    return size


def bf16_block(rng):
    """Numbers of either sign between 2^-7 and 2^-6, about what training leaves in rows this wide."""
    import numpy
    words = numpy.frombuffer(rng.randbytes(BLOCK_BYTES), numpy.uint16)
    return ((words & 0x807F) | 0x3C00).astype(numpy.uint16).tobytes()


def contents(tensor, sizes, blocks):
    name, _, shape = tensor
    size = size_of(tensor)
    if name.endswith("weight_shape"):
        rows, words = sizes[name.replace("weight_shape", "weight_packed")]
        yield struct.pack("<ii", rows, words * 8)
    elif name.endswith("bias"):
        yield bytes(size)
    elif name.endswith("norm.weight"):
        yield struct.pack("<H", 0x3F80) * shape[0]
    elif name.endswith("weight_scale"):
        yield struct.pack("<H", 0x3B00) * (size // 2)  # 2^-9: eighths of the others
    else:
        block = blocks["bits" if name.endswith("weight_packed") else "bf16"]
        for at in range(0, size, BLOCK_BYTES):
            yield block if size - at >= BLOCK_BYTES else block[: size - at]


def make(directory, gb, form, tokenizer):
    int4 = form == "int4"
    expert = 3 * 7168 * 2048 * (0.5625 if int4 else 2)
    vocab = 163840 if gb > 8 else 20480
    base = sum(size_of(t) for t in tensors_of(text_config(0, vocab), int4))
    experts = max(8, int((gb * 1e9 - base) / expert))
    config = text_config(experts, vocab)
    if int4:
        config["quantization_config"] = {
            "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
                "num_bits": 4, "type": "int", "symmetric": True, "group_size": 32, "strategy": "group", "dynamic": False}}},
            "ignore": ["re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*", "lm_head"]}
    directory.mkdir(parents=True, exist_ok=True)
    rng = random.Random(1)
    blocks = {"bits": rng.randbytes(BLOCK_BYTES), "bf16": bf16_block(rng)}
    tensors = tensors_of(config, int4)
    sizes = {name: shape for name, _, shape in tensors}
    shards, size = [[]], 0
    for tensor in tensors:
        if shards[-1] and size + size_of(tensor) > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += size_of(tensor)
    places, total = {}, 0
    for n, shard in enumerate(shards):
        file = f"model-{n + 1:05}-of-{len(shards):05}.safetensors"
        header, at = {}, 0
        for tensor in shard:
            header[tensor[0]] = {"dtype": tensor[1], "shape": list(tensor[2]), "data_offsets": [at, at + size_of(tensor)]}
            places[tensor[0]] = file
            at += size_of(tensor)
        total += at
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(directory / file, "wb", buffering=0) as out:
            out.write(struct.pack("<Q", len(text)) + text)
            for tensor in shard:
                for part in contents(tensor, sizes, blocks):
                    view = memoryview(part)
                    while view:
                        view = view[out.write(view):]
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    for name in ("tiktoken.model", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(pathlib.Path(tokenizer) / name, directory / name)
    (directory / "config.json").write_text(json.dumps(config, indent=1))  # the last: the folder is whole
    print(f"{total / 1e9:.2f} GB written to {directory}: {form}, {experts} experts, vocabulary {vocab}")


def bytes_of(directory):
    return sum(path.stat().st_size for path in directory.glob("*.safetensors"))


def warm(directory):
    """Every file through the page cache once; the seconds this takes are its rate."""
    start = time.monotonic()
    for path in sorted(directory.glob("*.safetensors")):
        with open(path, "rb", buffering=0) as file:
            buffer = bytearray(BLOCK_BYTES)
            while file.readinto(buffer):
                pass
    return time.monotonic() - start


def host_to_device_rate():
    """Bytes a second of copies from pinned memory; None without PyTorch or a GPU."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    host = torch.empty(1 << 30, dtype=torch.uint8).pin_memory()
    device = torch.empty_like(host, device="cuda")
    best = 0.0
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.monotonic()
        device.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        best = max(best, (1 << 30) / (time.monotonic() - start))
    return best


def start(command, port):
    """Seconds until ready and until the first token, of a server that is then ended; and its log, a line with its second each."""
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    log = []

    def read():
        for line in process.stdout:
            log.append((time.monotonic() - began, line.rstrip()))

    reader = threading.Thread(target=read)
    reader.start()
    url = f"http://127.0.0.1:{port}"
    try:
        while True:
            if process.poll() is not None:
                reader.join()
                sys.exit(f"the server ended with {process.returncode}; its log:\n" + "\n".join(line for _, line in log[-30:]))
            try:
                with urllib.request.urlopen(url + "/health", timeout=1):
                    break
            except (urllib.error.URLError, OSError):
                time.sleep(0.005)
        ready = time.monotonic() - began
        body = {"prompt": [1, 2, 3], "max_tokens": 1, "temperature": 0, "ignore_eos": True}
        request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.load(response)
        first = time.monotonic() - began
        assert answer["usage"]["completion_tokens"] == 1, answer
    finally:
        process.terminate()
        process.wait(60)
    reader.join()
    return ready, first, log


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--baltoro", required=True)
    parser.add_argument("--model", required=True, type=pathlib.Path)
    parser.add_argument("--gb", type=float, default=12)
    parser.add_argument("--form", choices=["int4", "bf16"], default="int4")
    parser.add_argument("--tokenizer", default=str(ROOT / "pocket/model"))
    parser.add_argument("--starts", type=int, default=2)
    parser.add_argument("--port", type=int, default=0, help="0: any that is free")
    parser.add_argument("flags", nargs="*", help="for serve")
    options = parser.parse_args()
    if not (options.model / "config.json").exists():
        make(options.model, options.gb, options.form, options.tokenizer)
    size = bytes_of(options.model)
    seconds = warm(options.model)
    print(f"{size / 1e9:.2f} GB through the page cache in {seconds:.2f} s")
    rate = host_to_device_rate()
    if rate:
        print(f"copies from pinned memory to the GPU: {rate / 1e9:.1f} GB/s; wanted: under {size / rate + 3:.2f} s "
              f"({size / rate:.2f} s and 3)")
    port = options.port
    if port == 0:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
    command = [options.baltoro, "serve", str(options.model), "--host", "127.0.0.1", "--port", str(port), *options.flags]
    for n in range(options.starts):
        ready, first, log = start(command, port)
        print(f"start {n + 1}: ready after {ready:.2f} s, first token after {first:.2f} s")
        if n < options.starts - 1:
            continue
        for second, line in log:
            if " Route: " not in line:
                print(f"  {second:7.3f}  {line}")


if __name__ == "__main__":
    main()
