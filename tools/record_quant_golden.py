#!/usr/bin/env python3
"""Records tests/golden/quant.json: what torch and the compressed-tensors library make of bf16 weights.

Run it in an environment that has torch and compressed-tensors (the versions used are written into the file). Inputs are
drawn from a small integer generator that the test repeats, so only results are stored: for all 65,536 bf16 values the hash
of their e4m3fn bytes; for INT4 the scales and packed words in full, and the hash of the library's bf16 dequantisation.
"""
import json
import pathlib

import compressed_tensors
import numpy as np
import torch
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils.helpers import calculate_qparams
from safetensors import safe_open

ROOT = pathlib.Path(__file__).resolve().parent.parent


def fnv(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def bf16(bits):
    return torch.from_numpy(bits.astype(np.uint16).view(np.int16)).view(torch.bfloat16)


def draw(count, seed):
    """bf16 bits of magnitudes over eight octaves, as DrawBits of the test makes them."""
    state, out = seed, np.empty(count, np.uint16)
    for i in range(count):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        word = state >> 8
        out[i] = ((word & 1) << 15) | (((118 + (word >> 1 & 7)) << 7) | (word >> 4 & 127))
    return out


def float8():
    values = bf16(np.arange(65536, dtype=np.uint32)).float()
    codes = torch.clamp(values, -448, 448).to(torch.float8_e4m3fn)
    decoded = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(torch.float8_e4m3fn).float()
    numbers = [i for i in range(256) if i & 127 != 127]
    return {"hash_of_all_bf16": fnv(codes.view(torch.uint8).numpy().tobytes()),
            "values": [decoded[i].item() if i in numbers else None for i in range(256)]}


def int4(weight):
    """The library's tensors for a bf16 matrix, and what it reads back from them."""
    args = QuantizationArgs(num_bits=4, type="int", symmetric=True, strategy="group", group_size=32)
    groups = weight.unflatten(-1, (weight.shape[1] // 32, 32))
    scale, _ = calculate_qparams(groups.amin(-1), groups.amax(-1), args)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    stored = PackedQuantizationCompressor.compress({"weight": weight, "weight_scale": scale}, scheme)
    back = PackedQuantizationCompressor.decompress(stored, scheme)["weight"]
    assert back.dtype == torch.bfloat16 and stored["weight_shape"].dtype == torch.int64
    return stored, back


def int4_case(rows, columns, seed, zero_group):
    bits = draw(rows * columns, seed)
    if zero_group:
        bits[32:64] = 0
    stored, back = int4(bf16(bits).reshape(rows, columns))
    return {"rows": rows, "columns": columns, "seed": seed, "zero_group": zero_group,
            "scales": stored["weight_scale"].view(torch.int16).numpy().view(np.uint16).flatten().tolist(),
            "packed": stored["weight_packed"].numpy().view(np.uint32).flatten().tolist(),
            "hash_of_bf16_back": fnv(back.contiguous().view(torch.int16).numpy().tobytes())}


def pocket_case(name):
    """A matrix of the pocket model: what `baltoro quantize --format int4` must write for it."""
    folder = ROOT / "pocket/model"
    file = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"][name + ".weight"]
    with safe_open(folder / file, "pt") as tensors:
        weight = tensors.get_tensor(name + ".weight")
    stored, back = int4(weight)
    return {"name": name, "hash_of_packed": fnv(stored["weight_packed"].numpy().tobytes()),
            "hash_of_scales": fnv(stored["weight_scale"].view(torch.int16).numpy().tobytes()),
            "hash_of_bf16_back": fnv(back.contiguous().view(torch.int16).numpy().tobytes())}


def main():
    experts = "language_model.model.layers.1.mlp.experts."
    golden = {"pocket": [pocket_case(experts + "0.down_proj"), pocket_case(experts + "15.gate_proj")],
              "torch": torch.__version__, "compressed_tensors": compressed_tensors.__version__, "float8": float8(),
              "int4": [int4_case(3, 160, 1, False), int4_case(2, 64, 2, True), int4_case(5, 32, 3, False)]}
    path = ROOT / "tests/golden/quant.json"
    path.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
