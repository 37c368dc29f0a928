"""The pocket model for training and evaluation: the family's text model over packed documents.

Tensors are kept in float32 and computed in bfloat16 under autocast. Every expert is computed for every token and
masked by the router's weights: at 16 experts of width 128 that is quicker than sorting tokens, and equal.
"""
import json
import math
import pathlib

import torch
import torch.nn.functional as F
from torch import nn


def load_config(folder=None):
    folder = pathlib.Path(folder or pathlib.Path(__file__).resolve().parent / "model")
    return json.loads((folder / "config.json").read_text())["text_config"]


def yarn_frequencies(c, d):
    """Of d dimensions that are rotated: [d / 2]."""
    s, base = c["rope_scaling"], c["rope_theta"]

    def correction(turns):
        return d * math.log(s["original_max_position_embeddings"] / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(correction(s["beta_fast"])), 0)
    high = min(math.ceil(correction(s["beta_slow"])), d - 1)
    j = torch.arange(d // 2, dtype=torch.float64)
    plain = base ** (-2 * j / d)
    ramp = ((j - low) / max(high - low, 0.001)).clamp(0, 1)
    return (plain * (1 - ramp) + plain / s["factor"] * ramp).float()


def softmax_scale(c):
    s = c["rope_scaling"]
    mscale = 0.1 * s["mscale_all_dim"] * math.log(s["factor"]) + 1
    return (c["qk_nope_head_dim"] + c["qk_rope_head_dim"]) ** -0.5 * mscale * mscale


def rotate(x, cos, sin):
    """x: [T, h, 64], interleaved pairs; cos, sin: [T, 1, 32] float32."""
    x = x.float().unflatten(-1, (-1, 2))
    a, b = x[..., 0], x[..., 1]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


def norm(x, weight, eps):
    f = x.float()
    return (f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + eps)) * weight


def packed_attention(q, k, v, bounds, longest, scale):
    """Causal inside each document. q, k, v: [T, h, 192]; bounds: int32 [documents + 1]."""
    if q.is_cuda and q.dtype == torch.bfloat16:
        from torch.nn.attention.varlen import varlen_attn
        return varlen_attn(q, k, v, bounds, bounds, longest, longest, scale=scale, window_size=(-1, 0))
    out = []
    for one in zip(*(t.split(bounds.diff().tolist()) for t in (q, k, v))):
        one = [t.transpose(0, 1)[None] for t in one]
        out.append(F.scaled_dot_product_attention(*one, is_causal=True, scale=scale)[0].transpose(0, 1))
    return torch.cat(out)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c, h = c, c["num_attention_heads"]
        self.heads, self.nope, self.rope, self.v = h, c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
        self.scale, self.eps = softmax_scale(c), c["rms_norm_eps"]
        linear = lambda i, o: nn.Linear(i, o, bias=False)  # noqa: E731
        self.q_a_proj = linear(c["hidden_size"], c["q_lora_rank"])
        self.q_a_layernorm = nn.Parameter(torch.ones(c["q_lora_rank"]))
        self.q_b_proj = linear(c["q_lora_rank"], h * (self.nope + self.rope))
        self.kv_a_proj_with_mqa = linear(c["hidden_size"], c["kv_lora_rank"] + self.rope)
        self.kv_a_layernorm = nn.Parameter(torch.ones(c["kv_lora_rank"]))
        self.kv_b_proj = linear(c["kv_lora_rank"], h * (self.nope + self.v))
        self.o_proj = linear(h * self.v, c["hidden_size"])

    def project(self, x, cos, sin):
        q = self.q_b_proj(norm(self.q_a_proj(x), self.q_a_layernorm, self.eps)).unflatten(-1, (self.heads, -1))
        latent, k_rope = self.kv_a_proj_with_mqa(x).split([self.c["kv_lora_rank"], self.rope], -1)
        kv = self.kv_b_proj(norm(latent, self.kv_a_layernorm, self.eps)).unflatten(-1, (self.heads, -1))
        q_nope, q_rope = q.split([self.nope, self.rope], -1)
        k_nope, v = kv.split([self.nope, self.v], -1)
        q = torch.cat((q_nope, rotate(q_rope, cos, sin).to(q.dtype)), -1)
        k_rope = rotate(k_rope.unsqueeze(-2), cos, sin).to(q.dtype).expand(*k_nope.shape[:-1], -1)
        return q, torch.cat((k_nope, k_rope), -1), v

    def forward(self, x, cos, sin, bounds, longest):
        q, k, v = self.project(x, cos, sin)
        v = F.pad(v, (0, self.nope + self.rope - self.v))
        out = packed_attention(q, k, v.to(q.dtype), bounds, longest, self.scale)[..., :self.v]
        return self.o_proj(out.flatten(-2))


class Mlp(nn.Module):
    def __init__(self, c, width):
        super().__init__()
        self.gate_proj = nn.Linear(c["hidden_size"], width, bias=False)
        self.up_proj = nn.Linear(c["hidden_size"], width, bias=False)
        self.down_proj = nn.Linear(width, c["hidden_size"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Experts(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c, self.count, self.width = c, c["n_routed_experts"], c["moe_intermediate_size"]
        self.gate = nn.Parameter(torch.empty(self.count, c["hidden_size"]))
        self.register_buffer("e_score_correction_bias", torch.zeros(self.count))
        self.gate_proj = nn.Parameter(torch.empty(self.count, self.width, c["hidden_size"]))
        self.up_proj = nn.Parameter(torch.empty(self.count, self.width, c["hidden_size"]))
        self.down_proj = nn.Parameter(torch.empty(self.count, c["hidden_size"], self.width))
        self.shared_experts = Mlp(c, c["n_shared_experts"] * self.width)

    def route(self, x):
        """[T, E] weights (zero for the experts not picked)."""
        with torch.autocast(x.device.type, enabled=False):
            scores = F.linear(x.float(), self.gate.float()).sigmoid()
            picked = (scores + self.e_score_correction_bias).topk(self.c["num_experts_per_tok"], -1)[1]
            mask = torch.zeros_like(scores).scatter(-1, picked, 1.0)
            weights = scores * mask
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * self.c["routed_scaling_factor"]
        return weights, mask

    def forward(self, x):
        weights, mask = self.route(x)
        hidden = F.silu(F.linear(x, self.gate_proj.flatten(0, 1))) * F.linear(x, self.up_proj.flatten(0, 1))
        hidden = (hidden.unflatten(-1, (self.count, -1)) * weights.to(hidden.dtype).unsqueeze(-1)).flatten(-2)
        routed = F.linear(hidden, self.down_proj.permute(1, 0, 2).flatten(1))
        return routed + self.shared_experts(x), mask.sum(0)


class Layer(nn.Module):
    def __init__(self, c, index):
        super().__init__()
        self.eps = c["rms_norm_eps"]
        self.input_layernorm = nn.Parameter(torch.ones(c["hidden_size"]))
        self.post_attention_layernorm = nn.Parameter(torch.ones(c["hidden_size"]))
        self.self_attn = Attention(c)
        self.dense = index < c["first_k_dense_replace"]
        self.mlp = Mlp(c, c["intermediate_size"]) if self.dense else Experts(c)

    def forward(self, x, cos, sin, bounds, longest):
        dtype = torch.bfloat16 if x.is_cuda else x.dtype
        x = x + self.self_attn(norm(x, self.input_layernorm, self.eps).to(dtype), cos, sin, bounds, longest)
        y = norm(x, self.post_attention_layernorm, self.eps).to(dtype)
        if self.dense:
            return x + self.mlp(y), None
        out, used = self.mlp(y)
        return x + out, used


class PocketModel(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c, i) for i in range(c["num_hidden_layers"]))
        self.norm = nn.Parameter(torch.ones(c["hidden_size"]))
        self.lm_head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)
        self.register_buffer("frequencies", yarn_frequencies(c, c["qk_rope_head_dim"]), persistent=False)
        self.initialise()

    @torch.no_grad()
    def initialise(self):
        deep = (2 * self.c["num_hidden_layers"]) ** -0.5
        for key, p in self.named_parameters():
            if p.dim() < 2:
                continue
            std = p.shape[-1] ** -0.5 * 0.8
            if key.endswith(("o_proj.weight", "down_proj.weight", "down_proj")):
                std *= deep
            elif key == "embed_tokens.weight":
                std = 0.5
            elif key.endswith("mlp.gate"):
                std = p.shape[-1] ** -0.5 * 0.5
            nn.init.normal_(p, 0, std)

    def angles(self, positions):
        turns = positions.float().unsqueeze(-1) * self.frequencies
        return turns.cos().unsqueeze(-2), turns.sin().unsqueeze(-2)

    def forward(self, ids, positions, targets, bounds, longest):
        """Sum of the loss over targets >= 0, and how many tokens each expert took: [expert layers, E]."""
        cos, sin = self.angles(positions)
        x, used = self.embed_tokens(ids), []
        for layer in self.layers:
            x, u = layer(x, cos, sin, bounds, longest)
            if u is not None:
                used.append(u)
        x = norm(x, self.norm, self.c["rms_norm_eps"])
        logits = self.lm_head(x.to(torch.bfloat16) if x.is_cuda else x)
        loss = F.cross_entropy(logits.float(), targets, ignore_index=-100, reduction="sum")
        return loss, torch.stack(used)

    def logits(self, ids):
        """One document, all positions (for checks)."""
        n = ids.numel()
        cos, sin = self.angles(torch.arange(n, device=ids.device))
        bounds = torch.tensor([0, n], dtype=torch.int32, device=ids.device)
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x, _ = layer(x, cos, sin, bounds, n)
        return self.lm_head(norm(x, self.norm, self.c["rms_norm_eps"]))


def export_tensors(model):
    """The family's tensor names -> CPU tensors in the file's types."""
    out = {}
    prefix = "language_model."
    for key, value in model.state_dict().items():
        value = value.detach().cpu()
        if key.startswith("lm_head"):
            out[prefix + key] = value.bfloat16()
            continue
        key = prefix + "model." + key
        if key.endswith("e_score_correction_bias"):
            out[key.replace("mlp.e_score", "mlp.gate.e_score")] = value.float()
        elif key.endswith("mlp.gate"):
            out[key + ".weight"] = value.bfloat16()
        elif value.dim() == 3:
            base, kind = key.rsplit(".", 1)
            for e in range(value.shape[0]):
                out[f"{base}.experts.{e}.{kind}.weight"] = value[e].bfloat16().contiguous()
        elif key.endswith(("norm",)):
            out[key + ".weight"] = value.bfloat16()
        else:
            out[key] = value.bfloat16()
    return out


def save(model, folder, limit=14 << 20):
    """Writes shards of at most `limit` bytes and their index."""
    from safetensors.torch import save_file
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    shards, size = [{}], 0
    for key, value in export_tensors(model).items():
        n = value.numel() * value.element_size()
        if size + n > limit:
            shards.append({})
            size = 0
        shards[-1][key] = value
        size += n
    weight_map = {}
    for i, shard in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        weight_map.update({key: file for key in shard})
    total = sum(v.numel() * v.element_size() for shard in shards for v in shard.values())
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}, indent=1) + "\n")
    return total


def load(folder, device="cpu"):
    """The exported files back into a PocketModel (float32 values that were rounded to bfloat16)."""
    from safetensors.torch import load_file
    folder = pathlib.Path(folder)
    model = PocketModel(load_config(folder))
    tensors = {}
    for file in sorted(set(json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"].values())):
        tensors.update(load_file(folder / file))
    state = model.state_dict()
    for key in state:
        name = "language_model." + ("" if key.startswith("lm_head") else "model.") + key
        if key.endswith("e_score_correction_bias"):
            state[key] = tensors[name.replace("mlp.e_score", "mlp.gate.e_score")].float()
        elif state[key].dim() == 3:
            base, kind = name.rsplit(".", 1)
            state[key] = torch.stack([tensors[f"{base}.experts.{e}.{kind}.weight"] for e in range(state[key].shape[0])]).float()
        else:
            state[key] = tensors.get(name, tensors.get(name + ".weight")).float()
    model.load_state_dict(state)
    return model.to(device).eval()
