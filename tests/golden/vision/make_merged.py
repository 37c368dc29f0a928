#!/usr/bin/env python3
"""Records tests/golden/vision/merged.json.gz: what a tiny random Kimi K2.5 of `transformers` says to prompts with pictures.

    python3 tests/golden/vision/make_merged.py

needs what make_vision.py needs, whose encoder and pixels it takes. The text model's weights follow from their names as well
(tools/record_tiny_golden.py). Of each prompt the greedy continuation is kept, of each of its places the log-probabilities of the
whole vocabulary in float32, and how close the two best are.
"""
import gzip
import json
import pathlib
import re

import torch
import transformers

import make_vision
from record_tiny_golden import weight as text_weight

HERE = pathlib.Path(__file__).resolve().parent
PLACEHOLDER, LENGTH = 5, 8
VISION = dict(make_vision.TINY_A, text_hidden_size=128)
# As the releases' text_config.
TEXT = {"model_type": "deepseek_v3", "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 2,
        "q_lora_rank": 64, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "intermediate_size": 192, "moe_intermediate_size": 64, "n_routed_experts": 8, "n_shared_experts": 1,
        "first_k_dense_replace": 1, "num_experts_per_tok": 3, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
        "routed_scaling_factor": 2.0, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 4096,
        "vocab_size": 90, "hidden_act": "silu", "tie_word_embeddings": False, "attention_bias": False,
        "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
# name, pictures between pieces of text
CASES = [("no_picture", []), ("one", [[1, 8, 8]]), ("smallest", [[1, 2, 2]]), ("wide", [[1, 2, 60]]), ("tall", [[1, 40, 2]]),
         ("three", [[1, 18, 14], [1, 4, 6], [1, 2, 2]]), ("larger_than_a_block", [[1, 24, 30]])]


def fill_text(model):
    """By the names that the releases have behind `language_model.`."""
    for name, tensor in model.state_dict().items():
        if "vision_tower" in name or "mm_projector" in name:
            continue
        own = name.replace("model.language_model.", "model.")
        fused = re.fullmatch(r"(.*\.experts)\.(gate_up_proj|down_proj)", own)
        if fused and fused.group(2) == "gate_up_proj":
            for expert in range(tensor.shape[0]):
                parts = [text_weight(f"{fused.group(1)}.{expert}.{part}.weight", (tensor.shape[1] // 2, tensor.shape[2]))
                         for part in ("gate_proj", "up_proj")]
                tensor[expert] = torch.cat(parts)
        elif fused:
            for expert in range(tensor.shape[0]):
                tensor[expert] = text_weight(f"{fused.group(1)}.{expert}.down_proj.weight", tuple(tensor.shape[1:]))
        else:
            tensor.copy_(text_weight(own, tuple(tensor.shape)))


def prompt_of(grids):
    ids = []
    for grid in [*grids, None]:
        ids += [10 + (7 * (len(ids) + i) + 3) % 80 for i in range(10)]
        if grid:
            ids += [PLACEHOLDER] * (grid[1] * grid[2] // 4)
    return ids


@torch.no_grad()
def main():
    model = make_vision.load_whole(VISION, torch.float32, TEXT)
    fill_text(model)
    cases = []
    for name, grids in CASES:
        ids = prompt_of(grids)
        seen = {}
        if grids:
            seen = {"pixel_values": make_vision.pixels_of(name, grids), "image_grid_thw": torch.tensor(grids)}
        tokens, rows = [], []
        for _ in range(LENGTH):
            logits = model(input_ids=torch.tensor([ids + tokens]), use_cache=False, **seen).logits[0, -1].float()
            rows.append([float(f"{x:.6g}") for x in logits.log_softmax(-1).tolist()])
            tokens.append(int(logits.argmax()))
        gaps = [sorted(row)[-1] - sorted(row)[-2] for row in rows]
        print(f"{name}: {len(ids)} tokens, {tokens}, least gap {min(gaps):.4f}")
        cases.append({"name": name, "grids": grids, "ids": ids, "tokens": tokens, "logprobs": rows})
    text = {**TEXT, "model_type": "kimi_k2", "scoring_func": "sigmoid", "topk_method": "noaux_tc"}
    config = {"model_type": "kimi_k25", "architectures": ["KimiK25ForConditionalGeneration"], "media_placeholder_token_id": PLACEHOLDER,
              "text_config": text, "vision_config": {**make_vision.COMMON, **VISION, "mm_hidden_size": VISION["vt_hidden_size"]}}
    whole = {"made_by": "tests/golden/vision/make_merged.py", "torch": torch.__version__, "transformers": transformers.__version__,
             "config": config, "cases": cases}
    (HERE / "merged.json.gz").write_bytes(gzip.compress(json.dumps(whole).encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
