#!/usr/bin/env python3
"""Times the picture encoder and projector of `transformers` at Kimi K2.5's size, random weights in bf16, on the first GPU, for the pictures
of `cuda_vision_bench`, whose "27 blocks", "embed" and "projector" are the same work.

    python3 bench/vision_vs_transformers.py

Attention: `sdpa` calls PyTorch's best kernel for each picture; `varlen` is PyTorch's packed flash attention over all of them.
"""
import statistics

import torch
import transformers
from torch.nn.attention.varlen import varlen_attn
from transformers.models.kimi_k25 import modeling_kimi_k25 as kimi
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

VISION = {"model_type": "kimi_k25_vision", "patch_size": 14, "hidden_act": "gelu_pytorch_tanh", "pos_emb_height": 64, "pos_emb_width": 64,
          "pos_emb_time": 4, "num_attention_heads": 16, "num_hidden_layers": 27, "hidden_size": 1152, "intermediate_size": 4304, "merge_kernel_size": [2, 2]}
TEXT = {"model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "vocab_size": 16}
PICTURES = {"8 of 1792 x 1792": [(1, 128, 128)] * 8, "1 of 1792 x 1792": [(1, 128, 128)], "64 of 224 x 224": [(1, 16, 16)] * 64,
            "64 mixed small ones": [(1, 8 + 2 * (i % 9), 8 + 2 * (i % 7)) for i in range(64)]}


def packed(module, query, key, value, attention_mask, scaling, dropout=0.0, cu_seq_lens_q=None, max_length_q=None, **_):
    """The interface of transformers' flash attention; [1, heads, patches, width] each."""
    q, k, v = (t[0].transpose(0, 1).contiguous() for t in (query, key, value))
    bounds = cu_seq_lens_q.int()
    return varlen_attn(q, k, v, bounds, bounds, int(max_length_q), int(max_length_q), scale=scaling)[None], None


def time_ms(run):
    for _ in range(3):
        run()
    times = []
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


@torch.no_grad()
def main():
    ALL_ATTENTION_FUNCTIONS["flash_attention_2"] = packed  # by this name the model hands over the bounds of pictures
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {torch.cuda.get_device_name()}")
    config = kimi.Kimi_K25Config(text_config=TEXT, vision_config=VISION, projection_hidden_size=1152)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        tower = kimi.Kimi_K25VisionModel(config.vision_config).eval()
        projector = kimi.Kimi_K25MultimodalProjection(config).eval()
    for name, grids in PICTURES.items():
        patches = sum(t * h * w for t, h, w in grids)
        pixels = torch.randn(patches, 3, 14, 14, device="cuda")
        grid = torch.tensor(grids, device="cuda")
        for attention in ("sdpa", "flash_attention_2"):
            tower.config._attn_implementation = attention
            shown = "varlen" if attention == "flash_attention_2" else attention
            try:
                ms = time_ms(lambda: projector(tower(pixels, grid_thw=grid).pooler_output))
                print(f"{name:24s} {shown:8s} {patches:7d} patches {ms:9.2f} ms", flush=True)
            except Exception as error:  # one attention that fails hides no other
                print(f"{name:24s} {shown:8s} failed: {type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    main()
