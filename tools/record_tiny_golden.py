#!/usr/bin/env python3
"""Records tests/golden/tiny_models.json.gz: what `transformers` computes for tiny models of every branch of the family.

Run it in an environment that has torch and transformers (the versions used are written into the file). Weights are not
stored: both sides draw them from the same integer hash (src/weights/dummy_source.h, tests/support/tiny_model.h), rounded
to bf16, so a case is a config.json, token ids and the logits of a few positions in float32. `bf16_nmse` is how far the same
model, run by transformers in bf16, lies from its own float32 logits with the same experts chosen: a rounding that tips
the choice of an expert would hide all others.
"""
import copy
import gzip
import json
import pathlib
import re
import sys

import numpy as np
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parent.parent
SEED = 7
M32 = np.uint64(0xFFFFFFFF)


def mix(x):
    """MixBits of dummy_source.h on arrays of uint64 that hold 32 bits."""
    x = x ^ (x >> np.uint64(16))
    x = (x * np.uint64(0x7FEB352D)) & M32
    x = x ^ (x >> np.uint64(15))
    x = (x * np.uint64(0x846CA68B)) & M32
    return x ^ (x >> np.uint64(16))


def stream(name):
    value = 2166136261
    for byte in name.encode():
        value = ((value ^ byte) * 16777619) & 0xFFFFFFFF
    value = mix(np.uint64(value ^ (SEED & 0xFFFFFFFF)))
    return int(mix(np.uint64(int(value) ^ (SEED >> 32))))


def uniform(name, count):
    bits = mix((mix(np.arange(count, dtype=np.uint64)) + np.uint64(stream(name))) & M32) >> np.uint64(8)
    return ((bits.astype(np.int64) - (1 << 23)).astype(np.float32)) * np.float32(2.0**-23)


def weight(name, shape):
    """The rule of TinySource: by name and shape alone."""
    values = uniform(name, int(np.prod(shape)))
    if name.endswith("e_score_correction_bias"):
        values = values * np.float32(0.4)
    elif len(shape) == 1:
        values = np.float32(1) + values * np.float32(0.25)
    elif name.endswith("embed_tokens.weight"):
        pass
    else:
        scale = np.float32(np.sqrt(3.0 / shape[-1]))
        if name.endswith("mlp.gate.weight"):
            scale = scale * np.float32(2)
        values = values * scale
    return torch.from_numpy(values.reshape(shape)).to(torch.bfloat16).to(torch.float32)


def fill(model, bias):
    state = model.state_dict()
    for name, tensor in state.items():
        fused = re.fullmatch(r"(.*\.experts)\.(gate_up_proj|down_proj)", name)
        if fused and fused.group(2) == "gate_up_proj":
            experts, rows, width = tensor.shape
            for e in range(experts):
                for i, part in enumerate(("gate_proj", "up_proj")):
                    made = weight(f"{fused.group(1)}.{e}.{part}.weight", (rows // 2, width))
                    tensor[e, i * rows // 2 : (i + 1) * rows // 2] = made
        elif fused:
            for e in range(tensor.shape[0]):
                tensor[e] = weight(f"{fused.group(1)}.{e}.down_proj.weight", tuple(tensor.shape[1:]))
        elif name.endswith("e_score_correction_bias") and not bias:
            tensor.zero_()
        else:
            tensor.copy_(weight(name, tuple(tensor.shape)))


YARN = {
    "type": "yarn",
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}

TINY_A = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "kimi_k2",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 96,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 48,
    "intermediate_size": 320,
    "moe_intermediate_size": 160,
    "n_routed_experts": 16,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "n_group": 4,
    "topk_group": 2,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.827,
    "rms_norm_eps": 1e-5,
    "rope_theta": 50000.0,
    "rope_scaling": YARN,
    "max_position_embeddings": 512,
    "vocab_size": 192,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
}

TINY_B = dict(
    TINY_A,
    hidden_size=512,
    num_hidden_layers=3,
    num_attention_heads=8,
    num_key_value_heads=8,
    q_lora_rank=256,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    intermediate_size=1024,
    moe_intermediate_size=256,
    n_routed_experts=32,
    num_experts_per_tok=8,
    n_group=1,
    topk_group=1,
)

TINY_C = dict(
    TINY_B,
    architectures=["DeepseekV2ForCausalLM"],
    model_type="deepseek_v2",
    q_lora_rank=None,
    scoring_func="softmax",
    topk_method="greedy",
    norm_topk_prob=False,
    routed_scaling_factor=1.0,
    n_shared_experts=2,
    num_experts_per_tok=6,
    rms_norm_eps=1e-6,
    rope_theta=10000.0,
    rope_scaling=dict(YARN, mscale=0.707, mscale_all_dim=0.707),
)


# The branches of TINY_A in the widths of attention that GPU kernels are made for.
TINY_D = dict(
    TINY_A,
    num_hidden_layers=2,
    q_lora_rank=128,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
)


def yarn(**changes):
    return {"rope_scaling": dict(YARN, **changes)}


def heads(count, layers):
    return {"num_attention_heads": count, "num_key_value_heads": count, "num_hidden_layers": layers}


# name, base, changes, number of tokens, has a selection bias
CASES = [
    ("a_yarn", TINY_A, {}, 96, True),
    ("a_yarn_0707", TINY_A, yarn(mscale=0.707, mscale_all_dim=0.707), 96, True),
    ("a_yarn_unequal_mscale", TINY_A, yarn(mscale=1.0, mscale_all_dim=0.707), 96, True),
    ("a_yarn_beta_1_1", TINY_A, yarn(beta_fast=1.0), 96, True),
    ("a_no_yarn", TINY_A, {"rope_scaling": None}, 96, True),
    ("a_one_group", TINY_A, {"n_group": 1, "topk_group": 1}, 40, True),
    ("a_three_dense", TINY_A, {"first_k_dense_replace": 3}, 40, True),
    ("a_no_dense", TINY_A, {"first_k_dense_replace": 0}, 40, True),
    ("a_not_normalised", TINY_A, {"norm_topk_prob": False, "routed_scaling_factor": 1.5}, 40, True),
    ("a_deepseek_v3", TINY_A, {"model_type": "deepseek_v3", "n_group": 8, "topk_group": 4}, 40, True),
    ("a_wide_vocabulary", TINY_A, {"vocab_size": 544, "num_hidden_layers": 2}, 24, True),
    ("a_odd_widths", TINY_A, {"hidden_size": 200, "q_lora_rank": 72, "moe_intermediate_size": 88, "vocab_size": 150,
                              "intermediate_size": 232}, 40, True),
    ("d_yarn", TINY_D, {}, 96, True),
    ("d_yarn_0707", TINY_D, yarn(mscale=0.707, mscale_all_dim=0.707), 96, True),
    ("d_yarn_unequal_mscale", TINY_D, yarn(mscale=1.0, mscale_all_dim=0.707), 96, True),
    ("d_yarn_beta_1_1", TINY_D, yarn(beta_fast=1.0), 96, True),
    ("d_no_yarn", TINY_D, {"rope_scaling": None}, 96, True),
    ("d_one_group", TINY_D, {"n_group": 1, "topk_group": 1}, 40, True),
    ("d_two_dense", TINY_D, {"first_k_dense_replace": 2, "num_hidden_layers": 3}, 40, True),
    ("d_no_dense", TINY_D, {"first_k_dense_replace": 0}, 40, True),
    ("d_not_normalised", TINY_D, {"norm_topk_prob": False, "routed_scaling_factor": 1.5}, 40, True),
    ("d_deepseek_v3", TINY_D, {"model_type": "deepseek_v3", "n_group": 8, "topk_group": 4}, 40, True),
    ("d_wide_vocabulary", TINY_D, {"vocab_size": 544}, 24, True),
    ("d_odd_widths", TINY_D, {"hidden_size": 200, "q_lora_rank": 72, "moe_intermediate_size": 88, "vocab_size": 150,
                              "intermediate_size": 232}, 40, True),
    ("b_kernel_widths", TINY_B, {}, 70, True),
    ("b_16_heads", TINY_B, heads(16, 2), 20, True),
    ("b_64_heads", TINY_B, heads(64, 1) | {"first_k_dense_replace": 0}, 20, True),
    ("b_missing_bias", TINY_B, {"num_hidden_layers": 2}, 20, False),
    ("b_kimi_k25", TINY_B, {"num_hidden_layers": 2} | yarn(factor=64.0), 20, True),
    ("b_moonlight", TINY_B, {"q_lora_rank": None, "rope_scaling": None, "n_shared_experts": 2, "num_hidden_layers": 2,
                             "routed_scaling_factor": 2.446, "num_experts_per_tok": 6}, 20, True),
    ("c_softmax_greedy", TINY_C, {}, 70, False),
    ("c_group_limited", TINY_C, {"topk_method": "group_limited_greedy", "n_group": 8, "topk_group": 3,
                                 "num_hidden_layers": 2, "routed_scaling_factor": 4.0}, 20, False),
]


def build(config):
    kwargs = {key: value for key, value in copy.deepcopy(config).items() if key not in ("architectures", "model_type")}
    if kwargs.get("rope_scaling") is None:
        kwargs.pop("rope_scaling", None)
    v2 = config["model_type"] == "deepseek_v2"
    kind = transformers.DeepseekV2Config if v2 else transformers.DeepseekV3Config
    parsed = kind(**kwargs, attn_implementation="eager")
    model = (transformers.DeepseekV2ForCausalLM if v2 else transformers.DeepseekV3ForCausalLM)(parsed)
    return model.eval()


def nmse(got, want):
    return float(((got - want) ** 2).sum() / (want**2).sum())


class ChosenExperts:
    """Notes the experts each router chooses, then makes it choose the same again."""

    def __init__(self, model):
        self.chosen = {}
        self.replay = False
        for module in model.modules():
            if type(module).__name__.endswith("TopkRouter"):
                module.forward = self.wrap(module, module.forward)

    def wrap(self, router, forward):
        def choose(hidden):
            logits, weights, indices = forward(hidden)
            if not self.replay:
                self.chosen[router] = indices
                return logits, weights, indices
            indices = self.chosen[router]
            v2 = type(router).__name__.startswith("DeepseekV2")
            scores = logits.softmax(-1, dtype=torch.float32) if v2 else logits.sigmoid()
            weights = scores.gather(1, indices)
            if not v2 and router.norm_topk_prob:
                weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
            return logits, weights * router.routed_scaling_factor, indices

        return choose


@torch.no_grad()
def record(name, config, tokens, bias):
    model = build(config)
    fill(model, bias)
    experts = ChosenExperts(model)
    ids = (uniform(name, tokens) * 0.5 + 0.5) * config["vocab_size"]
    ids = torch.from_numpy(ids.astype(np.int64))[None]
    logits = model(ids, use_cache=False).logits[0].float()
    experts.replay = True
    assert torch.equal(model(ids, use_cache=False).logits[0].float(), logits)
    frequencies = model.model.rotary_emb.inv_freq.clone()
    model = model.to(torch.bfloat16)  # would round the frequencies too, which no serving code does
    model.model.rotary_emb.inv_freq = frequencies
    rounded = model(ids, use_cache=False).logits[0].float()

    rows = sorted({0, tokens // 2, tokens - 1})
    written = copy.deepcopy(config)
    if name == "b_kimi_k25":
        written = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25",
                   "text_config": written, "vision_config": {}}
    print(f"{name}: bf16 nmse {nmse(rounded, logits):.2e}", file=sys.stderr)
    return {
        "name": name,
        "config": written,
        "bias": bias,
        "tokens": ids[0].tolist(),
        "rows": rows,
        "logits": [[float(f"{x:.8g}") for x in logits[row].tolist()] for row in rows],
        "bf16_nmse": float(f"{nmse(rounded, logits):.3g}"),
    }


def main():
    torch.manual_seed(0)
    cases = [record(name, dict(base, **changes), tokens, bias) for name, base, changes, tokens, bias in CASES]
    head = {"made_by": "tools/record_tiny_golden.py", "torch": torch.__version__,
            "transformers": transformers.__version__, "seed": SEED}
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    text = json.dumps(head)[:-1] + ', "cases": [\n' + lines + "\n]}\n"
    (ROOT / "tests/golden/tiny_models.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
