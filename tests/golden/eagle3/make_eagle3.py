#!/usr/bin/env python3
"""Records tests/golden/eagle3/drafts.json.gz: what Eagle3 draft models of every form propose, in plain numpy and float32.

    python3 tests/golden/eagle3/make_eagle3.py              # writes the recording anew
    python3 tests/golden/eagle3/make_eagle3.py --check      # fails where the recording is not what is computed here
    python3 tests/golden/eagle3/make_eagle3.py --write DIR  # the draft checkpoints, one folder each

Nothing but numpy is needed. Weights and features are not stored: both sides draw them from an integer hash of their names, as
README.md beside this file says; it also names every reading taken where the sources of the format leave a choice.
"""
import argparse
import gzip
import json
import math
import pathlib
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
SEED = 11  # of drafts; the tiny target models have 7
TARGET_SEED = 7
M32 = np.uint64(0xFFFFFFFF)
PROMPT, DRAFTED, ACCEPTED = 70, 5, 2  # tokens known before the first round; drafts a round; how many the second round finds taken
F32 = np.float32


# ---- numbers from names ---------------------------------------------------------------------------------------------------------

def mix(x):
    """MixBits of src/weights/dummy_source.h on arrays of uint64 that hold 32 bits."""
    x = x ^ (x >> np.uint64(16))
    x = (x * np.uint64(0x7FEB352D)) & M32
    x = x ^ (x >> np.uint64(15))
    x = (x * np.uint64(0x846CA68B)) & M32
    return x ^ (x >> np.uint64(16))


def uniform(name, count, seed):
    """HashUniform(HashStream(name, seed), 0 ... count - 1): multiples of 2^-23 in [-1, 1)."""
    value = 2166136261
    for byte in name.encode():
        value = ((value ^ byte) * 16777619) & 0xFFFFFFFF
    stream = mix(np.uint64(int(mix(np.uint64(value ^ seed)))))
    bits = mix((mix(np.arange(count, dtype=np.uint64)) + stream) & M32) >> np.uint64(8)
    return (bits.astype(np.int64) - (1 << 23)).astype(F32) * F32(2.0**-23)


def bf16(x):
    """Rounded to bfloat16, ties to even, as float32."""
    bits = np.ascontiguousarray(x, dtype=F32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)).view(F32)


def weight(name, shape, seed=SEED):
    """The rule of TinySource in tests/support/tiny_model.cc: by name, shape and seed alone."""
    values = uniform(name, math.prod(shape), seed)
    if len(shape) == 1:
        values = F32(1) + values * F32(0.25)
    elif not name.endswith("embed_tokens.weight"):
        values = values * F32(math.sqrt(3.0 / shape[-1]))
    return bf16(values).reshape(shape)


def integers(name, count, below):
    return ((uniform(name, count, SEED) * 0.5 + 0.5) * below).astype(np.int64)


# ---- the cases ------------------------------------------------------------------------------------------------------------------

# Widths of the target: test::SmallConfig(8, 2) of tests/support/tiny_model.h, an eight-layer model of two heads.
TARGET = {"hidden_size": 128, "num_hidden_layers": 8, "vocab_size": 90}
YARN = {"beta_fast": 1.0, "beta_slow": 1.0, "factor": 64.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 64, "type": "yarn"}

MLA = {
    "architectures": ["Eagle3DeepseekV2ForCausalLM"],
    "model_type": "kimi_k2",
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "q_lora_rank": 64,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "vocab_size": 90,
    "draft_vocab_size": 90,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 512,
    "rope_theta": 50000.0,
    "rope_scaling": YARN,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4], "use_aux_hidden_state": True,
                     "use_input_layernorm_in_first_layer": True, "use_last_layernorm": True, "use_mtp_layernorm": False},
    "bos_token_id": 0,
    "eos_token_id": 1,
}
LLAMA = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 128,
    "initializer_range": 0.02,
    "intermediate_size": 224,
    "max_position_embeddings": 512,
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_scaling": dict(YARN, beta_fast=32.0),
    "rope_theta": 50000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 90,
}

# name, config, changes, the layer's name in the file, prefix of all names but those of lm_head, d2t and t2d, has embed_tokens
CASES = [
    ("mla", MLA, {}, "midlayer.", "", True),
    ("mla_shared_embedding", MLA, {}, "layers.0.", "", False),
    ("mla_model_prefix", MLA, {}, "layers.0.", "model.", True),
    ("mla_d2t", MLA, {"draft_vocab_size": 40}, "midlayer.", "", True),
    ("mla_d2t_shared_embedding", MLA, {"draft_vocab_size": 40}, "layers.0.", "model.", False),
    ("mla_ids_at_the_top", MLA, {"eagle_config": None, "eagle_aux_hidden_state_layer_ids": [2, 4, 5]}, "midlayer.", "", True),
    ("mla_large_epsilon", MLA, {"rms_norm_eps": 0.25}, "midlayer.", "", True),
    ("mla_no_yarn", MLA, {"rope_scaling": None, "eagle_config": None}, "midlayer.", "", True),
    ("llama", LLAMA, {}, "midlayer.", "", True),
    ("llama_shared_embedding", LLAMA, {"eagle_config": MLA["eagle_config"]}, "midlayer.", "", False),
    ("llama_d2t", LLAMA, {"draft_vocab_size": 40}, "layers.0.", "model.", True),
    ("llama_no_yarn", LLAMA, {"rope_scaling": None}, "midlayer.", "model.", True),
    ("llama_wide_heads", LLAMA, {"head_dim": 128, "num_attention_heads": 2, "num_key_value_heads": 2}, "layers.0.", "", True),
    ("llama_attention_factor", LLAMA, {"rope_scaling": dict(YARN, attention_factor=1.4159)}, "midlayer.", "", True),
    ("llama_two_kv_heads", LLAMA, {"num_key_value_heads": 2}, "midlayer.", "", True),
]


def taps_after(config):
    """The target's layers whose outputs are the features, in the order in which they are concatenated."""
    eagle = config.get("eagle_config") or {}
    if "eagle_aux_hidden_state_layer_ids" in eagle:
        return list(eagle["eagle_aux_hidden_state_layer_ids"])
    layers = TARGET["num_hidden_layers"]
    before = config.get("eagle_aux_hidden_state_layer_ids") or [2, layers // 2, layers - 3]
    return [layer - 1 for layer in before]


def draft_vocabulary(config):
    return config.get("draft_vocab_size") or config["vocab_size"]


def mapped_ids(name, config):
    """The target ids of a smaller draft vocabulary, rising."""
    order = np.argsort(uniform(f"{name}.t2d", config["vocab_size"], SEED), kind="stable")
    return np.sort(order[:draft_vocabulary(config)])


def shapes(config):
    """Canonical names: those that a file with `midlayer.` and without prefix has."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    out = {"fc.weight": (hidden, 3 * hidden)}
    for norm in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        out[f"midlayer.{norm}.weight"] = (hidden,)
    attention = "midlayer.self_attn."
    if "kv_lora_rank" in config:
        nope, rope, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
        q, kv = config["q_lora_rank"], config["kv_lora_rank"]
        out[attention + "q_a_proj.weight"] = (q, 2 * hidden)
        out[attention + "q_a_layernorm.weight"] = (q,)
        out[attention + "q_b_proj.weight"] = (heads * (nope + rope), q)
        out[attention + "kv_a_proj_with_mqa.weight"] = (kv + rope, 2 * hidden)
        out[attention + "kv_a_layernorm.weight"] = (kv,)
        out[attention + "kv_b_proj.weight"] = (heads * (nope + value), kv)
        out[attention + "o_proj.weight"] = (hidden, heads * value)
    else:
        width, kv_heads = config["head_dim"], config["num_key_value_heads"]
        out[attention + "q_proj.weight"] = (heads * width, 2 * hidden)
        out[attention + "k_proj.weight"] = (kv_heads * width, 2 * hidden)
        out[attention + "v_proj.weight"] = (kv_heads * width, 2 * hidden)
        out[attention + "o_proj.weight"] = (hidden, heads * width)
    wide = config["intermediate_size"]
    out["midlayer.mlp.gate_proj.weight"] = out["midlayer.mlp.up_proj.weight"] = (wide, hidden)
    out["midlayer.mlp.down_proj.weight"] = (hidden, wide)
    out["norm.weight"] = (hidden,)
    out["lm_head.weight"] = (draft_vocabulary(config), hidden)
    return out


# ---- the draft model ------------------------------------------------------------------------------------------------------------

def mscale(factor, m):
    return 0.1 * m * math.log(factor) + 1 if factor > 1 else 1.0


def inverse_frequencies(config, dim):
    theta, scaling = config["rope_theta"], config["rope_scaling"]
    plain = theta ** (-2 * np.arange(dim // 2) / dim)
    if scaling is None:
        return plain

    def turns(n):
        return dim * math.log(scaling["original_max_position_embeddings"] / (2 * math.pi * n)) / (2 * math.log(theta))

    low, high = max(math.floor(turns(scaling["beta_fast"])), 0), min(math.ceil(turns(scaling["beta_slow"])), dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / (high - low if high != low else 0.001), 0, 1)
    return plain * (1 - ramp) + plain / scaling["factor"] * ramp


class Draft:
    """One sequence. `act` is applied to what every operation puts out: nothing, or rounding to bfloat16."""

    def __init__(self, name, config, shared_embedding, act=lambda x: x):
        self.c, self.act = config, act
        self.w = {key: weight(key, shape) for key, shape in shapes(config).items()}
        table = (config["vocab_size"], config["hidden_size"])
        self.embedding = weight("model.embed_tokens.weight", table, TARGET_SEED) if shared_embedding else weight("embed_tokens.weight", table)
        self.ids = mapped_ids(name, config) if draft_vocabulary(config) < config["vocab_size"] else None
        self.mla = "kv_lora_rank" in config
        self.width = config["qk_nope_head_dim"] + config["qk_rope_head_dim"] if self.mla else config["head_dim"]
        self.frequencies = inverse_frequencies(config, config["qk_rope_head_dim"] if self.mla else self.width)
        self.scale, scaling = self.width**-0.5, config["rope_scaling"]
        self.cos_factor = F32(scaling.get("attention_factor", 1)) if scaling else F32(1)
        if self.mla and scaling:
            self.scale *= mscale(scaling["factor"], scaling["mscale_all_dim"]) ** 2
        self.keys, self.values = [], []  # per position: [heads, width]

    def linear(self, name, x):
        return self.act(x @ self.w[name].T)

    def norm(self, name, x):
        mean = np.mean(x * x, -1, keepdims=True, dtype=F32)
        return self.act(x / np.sqrt(mean + F32(self.c["rms_norm_eps"])) * self.w[name])

    def rotate(self, x, position):
        """x [heads, d]: pairs of neighbours for MLA, of the two halves otherwise."""
        angle = position * self.frequencies
        cos, sin = np.cos(angle).astype(F32) * self.cos_factor, np.sin(angle).astype(F32) * self.cos_factor
        out = np.empty_like(x)
        first, second = (np.s_[:, 0::2], np.s_[:, 1::2]) if self.mla else (np.s_[:, :x.shape[1] // 2], np.s_[:, x.shape[1] // 2:])
        out[first] = x[first] * cos - x[second] * sin
        out[second] = x[second] * cos + x[first] * sin
        return self.act(out)

    def attention(self, x, position):
        """x [2 hidden] at `position`, whose key and value are appended."""
        prefix, heads = "midlayer.self_attn.", self.c["num_attention_heads"]
        if self.mla:
            nope, kv = self.c["qk_nope_head_dim"], self.c["kv_lora_rank"]
            low = self.norm(prefix + "q_a_layernorm.weight", self.linear(prefix + "q_a_proj.weight", x))
            q = self.linear(prefix + "q_b_proj.weight", low).reshape(heads, -1)
            q = np.concatenate((q[:, :nope], self.rotate(q[:, nope:], position)), 1)
            down = self.linear(prefix + "kv_a_proj_with_mqa.weight", x)
            rope = self.rotate(down[None, kv:], position)
            latent = self.norm(prefix + "kv_a_layernorm.weight", down[:kv])
            up = self.linear(prefix + "kv_b_proj.weight", latent).reshape(heads, -1)
            k, v = np.concatenate((up[:, :nope], np.repeat(rope, heads, 0)), 1), up[:, nope:]
        else:
            q, k, v = (self.linear(f"{prefix}{part}_proj.weight", x).reshape(-1, self.width) for part in "qkv")
            q, k = self.rotate(q, position), self.rotate(k, position)
            k, v = (np.repeat(part, heads // len(part), 0) for part in (k, v))
        assert len(self.keys) == position, "a key for each position before, none after"
        self.keys.append(k)
        self.values.append(v)
        scores = np.einsum("hd,thd->ht", q, np.stack(self.keys)) * F32(self.scale)
        shares = np.exp(scores - scores.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        out = self.act(np.einsum("ht,thd->hd", shares, np.stack(self.values)))
        return self.linear(prefix + "o_proj.weight", out.reshape(-1))

    def slot(self, feature, token, position):
        """h_pre [hidden]. `feature` [hidden]: fc of the target's vectors, or the h_pre before."""
        e = self.norm("midlayer.input_layernorm.weight", self.embedding[token])
        g = self.norm("midlayer.hidden_norm.weight", feature)
        x = self.act(feature + self.attention(np.concatenate((e, g)), position))
        y = self.norm("midlayer.post_attention_layernorm.weight", x)
        gate, up = self.linear("midlayer.mlp.gate_proj.weight", y), self.linear("midlayer.mlp.up_proj.weight", y)
        return self.act(x + self.linear("midlayer.mlp.down_proj.weight", self.act(gate / (1 + np.exp(-gate)) * up)))

    def logits(self, h_pre):
        """Of the draft vocabulary."""
        return self.norm("norm.weight", h_pre) @ self.w["lm_head.weight"].T

    def token(self, index):
        return int(index if self.ids is None else self.ids[index])

    def round(self, taps, tokens, first, force=None):
        """One round of drafting: step 1 over the slots first ... with the target's vectors taps [slots, 3 hidden] and the tokens at the
        positions after them, then the chain. Keys from `first` on are dropped before. Returns the steps."""
        del self.keys[first:], self.values[first:]
        h, steps = None, []
        for i, token in enumerate(tokens):
            h = self.slot(self.linear("fc.weight", taps[i]), token, first + i)
            if i >= len(tokens) - 3:
                steps.append({"slot": first + i, "token": int(token), "h_pre": h, "logits": self.logits(h)})
        last = first + len(tokens) - 1
        for i in range(1, DRAFTED):
            token = force[i - 1] if force else self.token(steps[-1]["logits"].argmax())
            h = self.slot(h, token, last + i)
            steps.append({"slot": last + i, "token": token, "h_pre": h, "logits": self.logits(h)})
        return steps


# ---- the recording --------------------------------------------------------------------------------------------------------------

def vectors(name, config, positions):
    """The target's three vectors of each position, concatenated: [positions, 3 hidden], bfloat16 values in [-0.5, 0.5)."""
    width = 3 * config["hidden_size"]
    return bf16(F32(0.5) * uniform(f"{name}.features", positions * width, SEED).reshape(positions, width))


def play(name, config, shared, act=lambda x: x, force=None):
    """Two rounds. The second finds ACCEPTED drafts of the first taken and another token after them."""
    draft = Draft(name, config, shared, act)
    known = integers(f"{name}.tokens", PROMPT + 2, config["vocab_size"])
    prompt, other = known[:PROMPT + 1], int(known[-1])  # the last of the prompt's is the one just sampled
    taps = vectors(name, config, PROMPT + ACCEPTED + 1)
    first = draft.round(taps[:PROMPT], prompt[1:], 0, force and force[0])
    drafted = force[0] if force else [draft.token(step["logits"].argmax()) for step in first[-DRAFTED:]]
    taken = drafted[:ACCEPTED] + [other]
    second = draft.round(taps[PROMPT:], taken, PROMPT, force and force[1])
    again = force[1] if force else [draft.token(step["logits"].argmax()) for step in second[-DRAFTED:]]
    return prompt, taken, (first, second), (drafted, again), draft


def written(step, draft):
    order = np.argsort(-step["logits"], kind="stable")[:5]
    short = lambda values: [float(f"{x:.7g}") for x in values]  # noqa: E731
    return {"slot": step["slot"], "token": step["token"], "h_pre": short(step["h_pre"][:8]),
            "h_pre_rms": float(f"{np.sqrt(np.mean(step['h_pre']**2)):.7g}"),
            "top": [[draft.token(i), float(f"{step['logits'][i]:.7g}")] for i in order]}


def record(name, base, changes, layer, prefix, has_embedding):
    config = {key: value for key, value in dict(base, **changes).items() if key not in changes or value is not None or key == "rope_scaling"}
    prompt, taken, rounds, drafted, draft = play(name, config, not has_embedding)
    _, _, rounded, _, _ = play(name, config, not has_embedding, bf16, drafted)
    pairs = [(a["logits"], b["logits"]) for exact, rough in zip(rounds, rounded) for a, b in zip(exact, rough)]
    error = sum(float(((a - b)**2).sum()) for a, b in pairs) / sum(float((a**2).sum()) for a, _ in pairs)
    for steps in rounds:
        for step in steps[-DRAFTED:]:
            first, second = np.sort(step["logits"])[:-3:-1]
            assert first - second > 1e-3, f"{name}: no clear winner; change the case"
    print(f"{name}: bf16 nmse {error:.2e}, drafts {drafted}", file=sys.stderr)
    case = {"name": name, "config": config, "names": {"layer": layer, "prefix": prefix}, "embed_tokens": has_embedding,
            "taps_after": taps_after(config), "prompt": prompt.tolist()}
    if draft.ids is not None:
        case["draft_ids"] = draft.ids.tolist()
    case["bf16_nmse"] = float(f"{error:.3g}")
    case["rounds"] = [{"first_slot": at, "tokens": list(map(int, tokens)), "drafted": ids, "steps": [written(step, draft) for step in steps]}
                      for at, tokens, ids, steps in zip((0, PROMPT), (prompt[1:], taken), drafted, rounds)]
    return case


def recording():
    head = {"made_by": "tests/golden/eagle3/make_eagle3.py", "seed": SEED, "target_seed": TARGET_SEED, "target": TARGET}
    lines = ",\n".join(json.dumps(record(*case), separators=(",", ":")) for case in CASES)
    return json.dumps(head)[:-1] + ', "cases": [\n' + lines + "\n]}\n"


def agree(a, b):
    """The same but for the last digits of numbers: another machine sums in another order."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(agree(a[key], b[key]) for key in a if key != "bf16_nmse")
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(agree, a, b))
    return abs(a - b) <= 1e-4 * max(1.0, abs(a)) if isinstance(a, float) else a == b


# ---- checkpoints ----------------------------------------------------------------------------------------------------------------

def checkpoint(name, config, layer, prefix, has_embedding):
    """(name in the file, safetensors type, shape, bytes) of each tensor."""
    made = dict(shapes(config), **({"embed_tokens.weight": (config["vocab_size"], config["hidden_size"])} if has_embedding else {}))
    for key, shape in made.items():
        data = (weight(key, shape).view(np.uint32) >> np.uint32(16)).astype("<u2").tobytes()
        bare = key.replace("midlayer.", layer)
        yield (bare if key.startswith("lm_head") else prefix + bare), "BF16", shape, data
    if draft_vocabulary(config) < config["vocab_size"]:
        ids = mapped_ids(name, config)
        yield "d2t", "I64", ids.shape, (ids - np.arange(len(ids))).astype("<i8").tobytes()
        used = np.isin(np.arange(config["vocab_size"]), ids)
        yield "t2d", "BOOL", used.shape, used.astype(np.uint8).tobytes()


def write(folder):
    for name, base, changes, layer, prefix, has_embedding in CASES:
        config = record(name, base, changes, layer, prefix, has_embedding)["config"]
        out = pathlib.Path(folder) / name
        out.mkdir(parents=True, exist_ok=True)
        (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        header, data = {}, b""
        for key, kind, shape, part in checkpoint(name, config, layer, prefix, has_embedding):
            header[key] = {"dtype": kind, "shape": list(shape), "data_offsets": [len(data), len(data) + len(part)]}
            data += part
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        (out / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", metavar="DIR")
    options = parser.parse_args()
    if options.write:
        return write(options.write)
    text, file = recording(), HERE / "drafts.json.gz"
    if not options.check:
        file.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    elif not agree(json.loads(gzip.decompress(file.read_bytes())), json.loads(text)):
        sys.exit(f"FAILED: {file} is not what is computed here")


if __name__ == "__main__":
    main()
