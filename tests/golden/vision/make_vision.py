#!/usr/bin/env python3
"""Records tests/golden/vision/encoders.json.gz: what `transformers` makes of pictures with tiny random encoders of Kimi K2.5.

    python3 tests/golden/vision/make_vision.py

needs torch, transformers and safetensors (the versions used are written into the file). Each encoder is written as a checkpoint
under the names and in the layout of the releases and read by transformers as it reads those, so that it is transformers that
says what the layout means. Weights are not stored: both sides draw them from an integer hash of their names (TinySource in
tests/support/tiny_model.cc), and pixels from a hash of the case's name.

Of each case some rows of the projector's output are kept, in float32. `bf16_nmse` is how far the same rows lie from these,
squared and relative, when transformers computes in bf16: sum (bf16 - f32)^2 / sum f32^2.
"""
import gzip
import json
import math
import pathlib
import sys
import tempfile

import numpy as np
import safetensors.torch
import torch
import transformers

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "tools"))
from record_tiny_golden import uniform  # noqa: E402

PATCH = 14

# The keys of the releases' config.json.
TINY_A = {"vt_hidden_size": 144, "vt_num_attention_heads": 2, "vt_num_hidden_layers": 3, "vt_intermediate_size": 200,
          "init_pos_emb_height": 8, "init_pos_emb_width": 8, "text_hidden_size": 64}
TINY_B = {"vt_hidden_size": 96, "vt_num_attention_heads": 4, "vt_num_hidden_layers": 2, "vt_intermediate_size": 130,
          "init_pos_emb_height": 5, "init_pos_emb_width": 5, "text_hidden_size": 40}
COMMON = {"patch_size": PATCH, "init_pos_emb_time": 4, "pos_emb_type": "divided_fixed", "merge_kernel_size": [2, 2],
          "merge_type": "sd2_tpool", "video_attn_type": "spatial_temporal", "mm_projector_type": "patchmerger",
          "projector_hidden_act": "gelu", "projector_ln_eps": 1e-5}

# name, encoder, grids (frames, rows, columns)
CASES = [
    ("a_smallest", TINY_A, [[1, 2, 2]]),
    ("a_as_large_as_the_table", TINY_A, [[1, 8, 8]]),
    ("a_smaller_than_the_table", TINY_A, [[1, 4, 6]]),
    ("a_larger_than_the_table", TINY_A, [[1, 18, 14]]),
    ("a_wide", TINY_A, [[1, 2, 512]]),
    ("a_tall", TINY_A, [[1, 200, 2]]),
    ("a_two_frames", TINY_A, [[2, 4, 6]]),
    ("a_three_frames", TINY_A, [[3, 2, 4]]),
    ("a_four_frames", TINY_A, [[4, 6, 4]]),
    ("a_mixed_sizes", TINY_A, [[1, 4, 6], [1, 18, 14], [1, 2, 2], [1, 2, 40]]),
    ("a_mixed", TINY_A, [[1, 4, 6], [3, 2, 4], [1, 18, 14], [1, 2, 2], [4, 6, 4], [1, 2, 40]]),
    ("b_one", TINY_B, [[1, 6, 4]]),
    ("b_mixed", TINY_B, [[1, 2, 2], [2, 8, 2], [1, 20, 22], [4, 2, 2], [1, 5 * 2, 6]]),
]


def weight(name, shape):
    """The rule of TinySource: by name and shape alone."""
    values = uniform(name, math.prod(shape))
    if name.endswith(".bias"):
        values = values * np.float32(0.5)
    elif len(shape) == 1:
        values = np.float32(1) + values * np.float32(0.25)
    elif not name.endswith("pos_emb.weight"):
        values = values * np.float32(np.sqrt(3.0 / math.prod(shape[1:])))
    return torch.from_numpy(values.reshape(shape)).to(torch.bfloat16)


def shapes(v):
    hidden, inner = v["vt_hidden_size"], 4 * v["vt_hidden_size"]
    wide = v["vt_intermediate_size"]
    out = {
        "vision_tower.patch_embed.proj.weight": (hidden, 3, PATCH, PATCH),
        "vision_tower.patch_embed.proj.bias": (hidden,),
        "vision_tower.patch_embed.pos_emb.weight": (v["init_pos_emb_height"], v["init_pos_emb_width"], hidden),
        "mm_projector.proj.0.weight": (inner, inner),
        "mm_projector.proj.0.bias": (inner,),
        "mm_projector.proj.2.weight": (v["text_hidden_size"], inner),
        "mm_projector.proj.2.bias": (v["text_hidden_size"],),
    }
    norms = ["vision_tower.encoder.final_layernorm", "mm_projector.pre_norm"]
    for i in range(v["vt_num_hidden_layers"]):
        block = f"vision_tower.encoder.blocks.{i}"
        norms += [f"{block}.norm0", f"{block}.norm1"]
        for module, n, k in (("wqkv", 3 * hidden, hidden), ("wo", hidden, hidden), ("mlp.fc0", wide, hidden), ("mlp.fc1", hidden, wide)):
            out[f"{block}.{module}.weight"] = (n, k)
            out[f"{block}.{module}.bias"] = (n,)
    for norm in norms:
        out[f"{norm}.weight"] = out[f"{norm}.bias"] = (hidden,)
    return out


def text_config(hidden):
    """The smallest text model that transformers makes: it is not used."""
    return {"model_type": "deepseek_v3", "hidden_size": hidden, "num_hidden_layers": 1, "num_attention_heads": 1,
            "num_key_value_heads": 1, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
            "v_head_dim": 8, "intermediate_size": 8, "moe_intermediate_size": 8, "n_routed_experts": 2,
            "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "vocab_size": 16,
            "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}


def load_whole(vision, dtype, text):
    """The whole model with the encoder as transformers reads it from a checkpoint. Its configuration has other keys than the releases'."""
    config = {
        "architectures": ["Kimi_K25ForConditionalGeneration"], "model_type": "kimi_k25", "text_config": text,
        "image_token_id": 5, "video_token_id": 10**6, "vision_start_token_id": 10**6 + 1, "vision_end_token_id": 10**6 + 2,
        "tie_word_embeddings": False,
        "projection_hidden_size": vision["vt_hidden_size"], "projection_layer_norm_eps": COMMON["projector_ln_eps"],
        "vision_config": {
            "model_type": "kimi_k25_vision", "patch_size": PATCH, "hidden_act": "gelu_pytorch_tanh",
            "pos_emb_height": vision["init_pos_emb_height"], "pos_emb_width": vision["init_pos_emb_width"], "pos_emb_time": 4,
            "num_attention_heads": vision["vt_num_attention_heads"], "num_hidden_layers": vision["vt_num_hidden_layers"],
            "hidden_size": vision["vt_hidden_size"], "intermediate_size": vision["vt_intermediate_size"],
            "merge_kernel_size": [2, 2]},
    }
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
        tensors = {name: weight(name, shape) for name, shape in shapes(vision).items()}
        safetensors.torch.save_file(tensors, f"{folder}/model.safetensors", {"format": "pt"})
        model, said = transformers.Kimi_K25ForConditionalGeneration.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    foreign = [name for name in said["missing_keys"] if "vision_tower" in name or "mm_projector" in name]
    assert not foreign and not said["unexpected_keys"] and not said["mismatched_keys"], said
    assert model.model.vision_tower.rotary_emb.inv_freq.dtype == torch.float32
    return model.eval()


def load(vision, dtype):
    return load_whole(vision, dtype, text_config(vision["text_hidden_size"])).model


def pixels_of(name, grids):
    patches = sum(math.prod(grid) for grid in grids)
    values = np.floor((uniform(f"{name}.pixels", patches * 3 * PATCH * PATCH) + np.float32(1)) * np.float32(128))
    return torch.from_numpy((values / np.float32(127.5) - np.float32(1)).reshape(patches, 3, PATCH, PATCH).astype(np.float32))


@torch.no_grad()
def encode(model, pixels, grids):
    """Together where all pictures have as many frames: transformers 5.17.0 fails on others, which are encoded one by one."""
    tower = model.vision_tower
    if len({frames for frames, _, _ in grids}) > 1:
        parts = pixels.split([math.prod(grid) for grid in grids])
        return torch.cat([encode(model, part, [grid]) for part, grid in zip(parts, grids)])
    pooled = tower(pixels.to(tower.dtype), grid_thw=torch.tensor(grids)).pooler_output
    return model.mm_projector(pooled).squeeze(1).float()


def recorded_rows(grids):
    """Of each picture the first and the last token and some between."""
    rows, first = [], 0
    for _, height, width in grids:
        tokens = height * width // 4
        rows += [first + int(i) for i in sorted({round(x) for x in np.linspace(0, tokens - 1, 5)})]
        first += tokens
    return rows


def record(name, vision, grids, exact, rounded):
    pixels = pixels_of(name, grids)
    rows = recorded_rows(grids)
    want, bf16 = (encode(model, pixels, grids)[rows] for model in (exact, rounded))
    nmse = float(((bf16 - want) ** 2).sum() / (want**2).sum())
    print(f"{name}: {len(rows)} rows, bf16 nmse {nmse:.2e}", file=sys.stderr)
    config = {"model_type": "kimi_k25", "text_config": {"hidden_size": vision["text_hidden_size"]},
              "vision_config": {**COMMON, **vision, "mm_hidden_size": vision["vt_hidden_size"]}}
    return {"name": name, "config": config, "grids": grids, "rows": rows,
            "out": [[float(f"{x:.7g}") for x in row] for row in want.tolist()], "bf16_nmse": float(f"{nmse:.3g}")}


def main():
    cases = []
    for vision in (TINY_A, TINY_B):
        exact, rounded = load(vision, torch.float32), load(vision, torch.bfloat16)
        cases += [record(name, vision, grids, exact, rounded) for name, of, grids in CASES if of is vision]
    head = {"made_by": "tests/golden/vision/make_vision.py", "torch": torch.__version__, "transformers": transformers.__version__}
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    text = json.dumps(head)[:-1] + ', "cases": [\n' + lines + "\n]}\n"
    (HERE / "encoders.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
