#!/usr/bin/env python3
"""Records tests/golden/formats: a tiny model of the family in each weight format, and what it must say.

Run it in an environment that has torch, transformers, safetensors and compressed-tensors (the versions used are written
into logits.json). The folders are checkpoints as others write them: fp8 by the block quantiser of transformers, int4 by the
compressed-tensors library, ascend by the rules of the format's description, with 8-bit attention of constant scales. Weights
are those of TinySource; in the repository they and what is long beside them are an archive, which CMake unpacks:

    cd tests/golden/formats && XZ_OPT=--lzma2=preset=9e,dict=64MiB,lp=1,pb=1 tar --sort=name --owner=0 --group=0 --mtime=2026-01-01 -cJf ../formats.tar.xz */*.safetensors logits.json ascend/quant_model_description.json */*.index.json

logits.json holds for each what transformers computes in float32 with the weights decoded
("decoded"), and with the products done as the format says, activations quantised ("exact").
"""
import copy
import json
import pathlib
import shutil
import types

import compressed_tensors
import numpy as np
import torch
import torch.nn.functional as F
import transformers
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.utils.helpers import calculate_qparams
from safetensors.torch import save_file
from transformers import FineGrainedFP8Config
from transformers.integrations.finegrained_fp8 import Fp8Quantize

from record_tiny_golden import TINY_A, build, fill, nmse, uniform, weight

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/formats"

CONFIG = dict(TINY_A, hidden_size=160, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, q_lora_rank=64,
              kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32, intermediate_size=192,
              moe_intermediate_size=64, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1, vocab_size=64)
TOKENS = 48


def plain_tensors(config):
    """Every tensor of the model by the names of released checkpoints, in bf16 (the router's bias in float32)."""
    state = build(config).state_dict()
    names = {}
    for name, tensor in state.items():
        if name.endswith(".experts.gate_up_proj"):
            for e in range(tensor.shape[0]):
                for part in ("gate_proj", "up_proj"):
                    names[name.replace("gate_up_proj", f"{e}.{part}.weight")] = (tensor.shape[1] // 2, tensor.shape[2])
        elif name.endswith(".experts.down_proj"):
            for e in range(tensor.shape[0]):
                names[name.replace("down_proj", f"{e}.down_proj.weight")] = tuple(tensor.shape[1:])
        else:
            names[name] = tuple(tensor.shape)
    kind = {name: torch.float32 if name.endswith("e_score_correction_bias") else torch.bfloat16 for name in names}
    return {name: weight(name, shape).to(kind[name]).contiguous() for name, shape in names.items()}


class Plain:
    def __init__(self, matrix):
        self.decoded = matrix.float()

    def product(self, x):
        return F.linear(x, self.decoded)


class Fp8:
    quantise = Fp8Quantize(types.SimpleNamespace(quantization_config=FineGrainedFP8Config(weight_block_size=(128, 128))))

    def __init__(self, matrix):
        rows, columns = matrix.shape
        whole = F.pad(matrix, (0, -columns % 128, 0, -rows % 128))  # the library wants whole blocks
        made = self.quantise.convert({"weight": whole})
        codes, scales = made["weight"][:rows, :columns].contiguous(), made["weight_scale_inv"]
        self.tensors = {"weight": codes, "weight_scale_inv": scales}
        spread = scales.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]
        self.decoded = codes.float() * spread

    def product(self, x):
        padded = F.pad(x, (0, -x.shape[-1] % 128)).unflatten(-1, (-1, 128))
        scale = padded.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448
        rounded = (padded / scale).to(torch.float8_e4m3fn).double() * scale.double()
        return (rounded.flatten(-2)[..., : x.shape[-1]] @ self.decoded.double().T).float()


class Int4:
    args = QuantizationArgs(num_bits=4, type="int", symmetric=True, strategy="group", group_size=32)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)

    def __init__(self, matrix):
        groups = matrix.unflatten(-1, (-1, 32))
        scale, _ = calculate_qparams(groups.amin(-1), groups.amax(-1), self.args)
        self.tensors = dict(PackedQuantizationCompressor.compress({"weight": matrix, "weight_scale": scale}, self.scheme))
        # The library decodes to bf16; the format's numbers are codes times scales, exactly.
        words = self.tensors["weight_packed"].long() & 0xFFFFFFFF
        codes = torch.stack([(words >> (4 * i) & 15) - 8 for i in range(8)], -1).flatten(-2)
        self.decoded = codes.float() * scale.float().repeat_interleave(32, 1)
        back = PackedQuantizationCompressor.decompress(dict(self.tensors), self.scheme)["weight"]
        assert torch.equal(back, self.decoded.to(torch.bfloat16))

    def product(self, x):
        return F.linear(x, self.decoded)


def per_row(matrix, steps):
    scale = matrix.float().abs().amax(1, keepdim=True) / steps
    return torch.clamp(torch.round(matrix.float() / scale), -steps - 1, steps), scale


def dynamic_product(codes, scale, x):
    step = x.abs().amax(-1, keepdim=True) / 127
    rounded = torch.round(x / step).nan_to_num()
    return ((rounded.double() @ codes.double().T) * step.double() * scale.double().T).float()


class Int8:
    def __init__(self, matrix):
        self.codes, self.scale = per_row(matrix, 127)
        self.decoded = self.codes * self.scale
        self.tensors = {"weight": self.codes.to(torch.int8), "weight_scale": self.scale,
                        "weight_offset": torch.zeros_like(self.scale)}

    def product(self, x):
        return dynamic_product(self.codes, self.scale, x)


class Int4Rows:
    """4 bits, a scale for each output: two output rows share a byte."""

    def __init__(self, matrix, slices):
        self.codes, self.scale = per_row(matrix, 7)
        self.decoded = self.codes * self.scale
        nibbles = self.codes.to(torch.int32) & 15
        self.tensors = {"weight": (nibbles[0::2] | nibbles[1::2] << 4).to(torch.uint8).view(torch.int8),
                        "weight_scale": self.scale, "weight_offset": torch.zeros_like(self.scale),
                        "scale_bias": 8 * self.decoded.unflatten(1, (slices, -1)).sum(-1)}

    def product(self, x):
        return dynamic_product(self.codes, self.scale, x)


class Int8Static:
    """Activations by constants, from the range that was seen."""

    def __init__(self, matrix, seen):
        codes, scale = per_row(matrix, 127)
        low, high = seen
        self.step = (high - low) / 255
        self.offset = torch.round(-128 - low / self.step)
        self.codes, self.decoded = codes, codes * scale
        self.deq = scale[:, 0] * self.step
        self.bias = -self.offset * codes.sum(1)
        self.tensors = {"weight": codes.to(torch.int8), "input_scale": self.step.reshape(1),
                        "input_offset": self.offset.reshape(1), "deq_scale": self.deq,
                        "quant_bias": self.bias.to(torch.int32)}

    def product(self, x):
        rounded = torch.clamp(torch.round(x / self.step + self.offset), -128, 127)
        return ((rounded.double() @ codes_t(self.codes) + self.bias.double()) * self.deq.double()).float()


def codes_t(codes):
    return codes.double().T


def is_projection(name):
    return name.endswith("_proj.weight") or name.endswith("_proj_with_mqa.weight")


def is_expert(name):
    return ".mlp.experts." in name


def with_matrices(config, matrices, exact):
    """The model of transformers, computing each projection with `matrices`: their products, or what they decode to."""
    model = build(config)
    fill(model, True)

    def linear(matrix, decoded=not exact):
        return (lambda x: F.linear(x, matrix.decoded)) if decoded else (lambda x: matrix.product(x))

    for name, module in model.named_modules():
        if f"{name}.weight" in matrices:
            # Attention in its absorbed form needs kv_b transposed, so servers decode it.
            module.forward = linear(matrices[f"{name}.weight"], not exact or name.endswith("kv_b_proj"))
        elif name.endswith(".experts"):
            parts = [[linear(matrices[f"{name}.{e}.{part}_proj.weight"]) for part in ("gate", "up", "down")]
                     for e in range(config["n_routed_experts"])]

            def forward(hidden, indices, weights, parts=parts):
                out = torch.zeros_like(hidden)
                for e, (gate, up, down) in enumerate(parts):
                    rows, places = torch.where(indices == e)
                    x = hidden[rows]
                    out.index_add_(0, rows, down(F.silu(gate(x)) * up(x)) * weights[rows, places, None])
                return out

            module.forward = forward
    return model


@torch.no_grad()
def ranges_seen(config, ids):
    """The lowest and highest input of every projection."""
    model = build(config)
    fill(model, True)
    seen = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(
                lambda _, args, name=name: seen.__setitem__(name, (args[0].min(), args[0].max())))
    model(ids, use_cache=False)
    return seen


@torch.no_grad()
def logits_of(config, matrices, ids):
    return {key: with_matrices(config, matrices, key == "exact")(ids, use_cache=False).logits[0].float()
            for key in ("exact", "decoded")}


def write(folder, config, tensors, shards, stem, described=None):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    names = sorted(tensors)
    if shards == 1:
        save_file(tensors, folder / f"{stem}.safetensors")
    else:
        files = [f"{stem}-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
        places = {name: files[i % shards] for i, name in enumerate(names)}  # parts of a matrix lie in different files
        for file in files:
            save_file({name: tensors[name] for name in names if places[name] == file}, folder / file)
        total = sum(t.numel() * t.element_size() for t in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (folder / f"{stem}.safetensors.index.json").write_text(json.dumps(index) + "\n")
    if described:
        (folder / "quant_model_description.json").write_text(json.dumps(described, indent=1) + "\n")


def stored(plain, matrices):
    """The tensors of a checkpoint, and of each the name of its matrix."""
    tensors, owner = {}, {}
    for name, tensor in plain.items():
        matrix = matrices.get(name)
        if matrix is None or isinstance(matrix, Plain):
            tensors[name], owner[name] = tensor, name
            continue
        for parameter, part in matrix.tensors.items():
            full = name.removesuffix("weight") + parameter
            tensors[full], owner[full] = part.contiguous(), name
    return tensors, owner


def prefixed(tensors):
    return {"language_model." + name: tensor for name, tensor in tensors.items()}


def main():
    torch.manual_seed(0)
    shutil.rmtree(OUT, ignore_errors=True)
    ids = torch.from_numpy(((uniform("formats", TOKENS) * 0.5 + 0.5) * CONFIG["vocab_size"]).astype(np.int64))[None]
    plain = plain_tensors(CONFIG)
    projections = {name: tensor for name, tensor in plain.items() if is_projection(name)}
    golden = {"torch": torch.__version__, "transformers": transformers.__version__,
              "compressed_tensors": compressed_tensors.__version__, "tokens": ids[0].tolist(), "formats": {}}

    fp8 = {name: Fp8(matrix) for name, matrix in projections.items()}
    config = dict(CONFIG, quantization_config={"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                                               "weight_block_size": [128, 128]})
    write(OUT / "fp8", config, stored(plain, fp8)[0], 1, "model")

    int4 = {name: Int4(matrix) if is_expert(name) else Plain(matrix) for name, matrix in projections.items()}
    library = QuantizationConfig(config_groups={"group_0": Int4.scheme}, format="pack-quantized",
                                 quantization_status="compressed",
                                 ignore=["re:.*self_attn.*", "re:.*shared_experts.*",
                                         "re:.*mlp\\.(gate|up|gate_up|down)_proj.*", "language_model.lm_head"])
    text = dict(CONFIG, quantization_config=json.loads(library.model_dump_json()))
    config = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "text_config": text}
    write(OUT / "int4", config, prefixed(stored(plain, int4)[0]), 2, "model")

    seen = ranges_seen(CONFIG, ids)
    ascend = {}
    for name, matrix in projections.items():
        if name.endswith("kv_b_proj.weight"):
            ascend[name] = Plain(matrix)
        elif "self_attn" in name:
            low, high = seen[name.removesuffix(".weight")]
            if name.startswith("model.layers.1.") and "kv_a" in name:
                high = high * 1.25  # not the constants of q_a, which reads the same input
            ascend[name] = Int8Static(matrix, (low, high))
        elif is_expert(name):
            ascend[name] = Int4Rows(matrix, 16 if "down_proj" in name else 1)
        else:
            ascend[name] = Int8(matrix)
    tensors, owner = stored(plain, ascend)
    kinds = {Int8Static: "W8A8", Int8: "W8A8_DYNAMIC", Int4Rows: "W4A8_DYNAMIC"}
    described = {"language_model." + name: kinds.get(type(ascend.get(owner[name])), "FLOAT") for name in tensors}
    described |= {"version": "1.0.0", "model_quant_type": "W8A8_DYNAMIC", "group_size": 0, "metadata": {}, "optional": {}}
    config = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "text_config": CONFIG}
    write(OUT / "ascend", config, prefixed(tensors), 3, "quant_model_weights", described)

    for name, matrices in (("fp8", fp8), ("int4", int4), ("ascend", ascend)):
        logits = logits_of(CONFIG, matrices, ids)
        print(f"{name}: activations change the logits by {nmse(logits['exact'], logits['decoded']) ** 0.5:.2%}")
        rows = list(range(0, TOKENS, 8)) + [TOKENS - 1]
        golden["formats"][name] = {"rows": rows} | {
            key: [[float(f"{x:.8g}") for x in those[row].tolist()] for row in rows] for key, those in logits.items()}
    (OUT / "logits.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
