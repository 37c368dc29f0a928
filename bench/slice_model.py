#!/usr/bin/env python3
"""Writes a folder that `baltoro serve --load-format dummy` takes for one tensor rank's slice of a public model.

    bench/slice_model.py Kimi-K2-Thinking --ranks 8 --out /tmp/slice
    baltoro serve /tmp/slice --load-format dummy --model-loader-extra-config '{"alike_layers": true}'

A slice is a model of its own: fewer heads, narrower layers, a part of the vocabulary; the low-rank projections and the router are
whole. The vocabulary is the pocket model's, filled up with made-up words, so that every token that a slice yields is text.
"""
import argparse
import base64
import json
import pathlib
import shutil

POCKET = pathlib.Path(__file__).resolve().parents[1] / "pocket/model"
# Of the family, as FamilyShape of src/plan/model_description.cc has it.
SHAPE = {"hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 64, "q_lora_rank": 1536, "kv_lora_rank": 512,
         "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048,
         "n_routed_experts": 384, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 1, "vocab_size": 163840,
         "rope_theta": 50000.0, "routed_scaling_factor": 2.827}
INT4 = {"quant_method": "compressed-tensors", "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 32, "strategy": "group", "symmetric": True, "type": "int"}}},
        "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]}
SPECIAL_TOKENS = 256
MODELS = {"Kimi-K2-Thinking": (INT4, 262144), "Kimi-K2-Instruct": (FP8, 131072)}


def write_tokenizer(out, size):
    """The pocket model's tokens, words of four letters, and the pocket model's special tokens behind them."""
    special = json.loads((POCKET / "tokenizer_config.json").read_text())
    lines = (POCKET / "tiktoken.model").read_text().splitlines()
    shift = size - SPECIAL_TOKENS - len(lines)
    if shift < 0:
        raise SystemExit(f"a vocabulary of {size} is too small: the pocket model's has {len(lines) + SPECIAL_TOKENS}")
    for i in range(shift):
        word = " " + "".join(chr(ord("a") + i // 26**place % 26) for place in range(4))
        lines.append(f"{base64.b64encode(word.encode()).decode()} {len(lines)}")
    (out / "tiktoken.model").write_text("\n".join(lines) + "\n")
    special["added_tokens_decoder"] = {str(int(i) + shift): token for i, token in special["added_tokens_decoder"].items()}
    (out / "tokenizer_config.json").write_text(json.dumps(special, indent=1) + "\n")
    return shift


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--layers", type=int, default=SHAPE["num_hidden_layers"], help="fewer, to try it on a small machine")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    if args.ranks < 1 or args.layers < 1:
        parser.error("--ranks and --layers begin at 1")
    quantization, positions = MODELS[args.model]
    config = json.loads((POCKET / "config.json").read_text())["text_config"] | SHAPE
    config |= {"architectures": ["DeepseekV3ForCausalLM"], "quantization_config": quantization, "max_position_embeddings": positions,
               "num_hidden_layers": args.layers}
    config["rope_scaling"]["factor"] = positions / config["rope_scaling"]["original_max_position_embeddings"]
    for key in ("num_attention_heads", "intermediate_size", "moe_intermediate_size", "vocab_size"):
        if config[key] % args.ranks:
            parser.error(f"--ranks {args.ranks} does not divide {key}, {config[key]}")
        config[key] //= args.ranks
    config["num_key_value_heads"] = config["num_attention_heads"]
    args.out.mkdir(parents=True, exist_ok=True)
    shift = write_tokenizer(args.out, config["vocab_size"])
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        config[key] += shift
    (args.out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    (args.out / "generation_config.json").write_text(json.dumps({"eos_token_id": config["eos_token_id"]}) + "\n")
    shutil.copy(POCKET / "chat_template.jinja", args.out)
    print(f"one of {args.ranks} ranks of {args.model} in {args.out}")


if __name__ == "__main__":
    main()
