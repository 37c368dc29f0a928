"""The attention of drafts (draft.py), of either published type. Both read [embedding, feature], twice the hidden size wide."""
import torch
from torch import nn

from modeling import norm, rotate, softmax_scale, yarn_frequencies

HARDLY = 1e-3  # radians a token: a pair that turns less is as good as one that is not rotated


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


def rotate_halves(x, cos, sin):
    """x: [T, h, d] of which the halves are pairs; cos, sin: [T, 1, d / 2] float32."""
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Attention(nn.Module):
    """What the types share. Each has queries(x, angles), keys(x, angles) and start_from(last), the target's last attention."""

    def __init__(self, c, rope, scale):
        super().__init__()
        self.heads, self.hidden, self.scale, self.eps = c["num_attention_heads"], c["hidden_size"], scale, c["rms_norm_eps"]
        self.register_buffer("frequencies", yarn_frequencies(c, rope), persistent=False)

    def angles(self, positions):
        turns = positions.float()[:, None] * self.frequencies
        return turns.cos()[:, None], turns.sin()[:, None]

    def attend(self, q, spans, first, own):
        """q [slots, heads, d] of the slots of several conversations. spans: for each, (how many of the slots are its, how many keys,
        the place of each slot among the keys); first: keys and values of each conversation; own: those of each slot's chain so far."""
        sizes, out = [slots for slots, _, _ in spans], []
        own = [[part.split(sizes) for part in pair] for pair in own]
        for i, (part, (_, count, places), keys, values) in enumerate(zip(q.split(sizes), spans, *first)):
            scores = torch.einsum("shd,thd->hst", part, keys).float() * self.scale
            later = torch.arange(count, device=q.device)[None] > places[:, None]
            scores = scores.masked_fill(later, float("-inf"))
            extra = [torch.einsum("shd,shd->hs", part, k[i]).float()[..., None] * self.scale for k, _ in own]
            shares = torch.cat([scores, *extra], -1).softmax(-1).to(q.dtype)
            mixed = torch.einsum("hst,thd->shd", shares[..., :count], values)
            for j, (_, v) in enumerate(own):
                mixed = mixed + shares[..., count + j].T[..., None] * v[i]
            out.append(mixed)
        return self.o_proj(torch.cat(out).flatten(-2))


class LatentAttention(Attention):
    """MLA, as the target has it."""

    def __init__(self, c):
        super().__init__(c, c["qk_rope_head_dim"], softmax_scale(c))
        self.nope, self.latent = c["qk_nope_head_dim"], c["kv_lora_rank"]
        rope, value, wide = c["qk_rope_head_dim"], c["v_head_dim"], 2 * self.hidden
        self.q_a_proj = linear(wide, c["q_lora_rank"])
        self.q_a_layernorm = nn.Parameter(torch.ones(c["q_lora_rank"]))
        self.q_b_proj = linear(c["q_lora_rank"], self.heads * (self.nope + rope))
        self.kv_a_proj_with_mqa = linear(wide, self.latent + rope)
        self.kv_a_layernorm = nn.Parameter(torch.ones(self.latent))
        self.kv_b_proj = linear(self.latent, self.heads * (self.nope + value))
        self.o_proj = linear(self.heads * value, self.hidden)

    def queries(self, x, angles):
        q = self.q_b_proj(norm(self.q_a_proj(x), self.q_a_layernorm, self.eps)).unflatten(-1, (self.heads, -1))
        return torch.cat((q[..., :self.nope], rotate(q[..., self.nope:], *angles).to(q.dtype)), -1)

    def keys(self, x, angles):
        """(keys, values), each [slots, heads, ...]."""
        down = self.kv_a_proj_with_mqa(x)
        up = self.kv_b_proj(norm(down[:, :self.latent], self.kv_a_layernorm, self.eps)).unflatten(-1, (self.heads, -1))
        rope = rotate(down[:, None, self.latent:], *angles).to(up.dtype).expand(-1, self.heads, -1)
        return torch.cat((up[..., :self.nope], rope), -1), up[..., self.nope:]

    def start_from(self, last, scales):
        for name in ("q_a_proj", "kv_a_proj_with_mqa"):
            weight = getattr(self, name).weight
            nn.init.normal_(weight, 0, 0.5 * self.hidden**-0.5)
            weight[:, self.hidden:] = getattr(last, name).weight
        for name in ("q_b_proj", "kv_b_proj", "o_proj"):
            getattr(self, name).weight.copy_(getattr(last, name).weight)
        self.q_a_layernorm.copy_(last.q_a_layernorm)
        self.kv_a_layernorm.copy_(last.kv_a_layernorm)


class HeadsAttention(Attention):
    """Llama's: heads with keys and values of their own, all of each rotated, without yarn's factor in the scale."""

    def __init__(self, c):
        assert c["num_key_value_heads"] == c["num_attention_heads"], "drafts of K2.5 have as many heads of keys as of queries"
        super().__init__(c, c["head_dim"], c["head_dim"]**-0.5)
        self.width = c["head_dim"]
        self.q_proj, self.k_proj, self.v_proj = (linear(2 * self.hidden, self.heads * self.width) for _ in range(3))
        self.o_proj = linear(self.heads * self.width, self.hidden)

    def queries(self, x, angles):
        return rotate_halves(self.q_proj(x).unflatten(-1, (self.heads, -1)), *angles).to(x.dtype)

    def keys(self, x, angles):
        """(keys, values), each [slots, heads, width]."""
        k, v = (part(x).unflatten(-1, (self.heads, -1)) for part in (self.k_proj, self.v_proj))
        return rotate_halves(k, *angles).to(v.dtype), v

    def start_from(self, last, scales):
        """Queries and keys score about as those of `last` do: pair i of its rotated dimensions turns as pair 2 i does here, and what it
        does not rotate goes, as the best approximation of its rank, to the pairs that hardly turn. `scales` [hidden] are those of the
        norm before it, by which the sizes of its latents are guessed."""
        def low(weight, after):  # a projection and the norm behind it
            size = (weight * scales).square().sum(1).mean().sqrt()
            return after[:, None] * weight / size

        nope, latent, half = last.nope, last.kv_a_layernorm.numel(), self.width // 2
        q = (last.q_b_proj.weight @ low(last.q_a_proj.weight, last.q_a_layernorm)).unflatten(0, (self.heads, -1))
        kv = (last.kv_b_proj.weight @ low(last.kv_a_proj_with_mqa.weight[:latent], last.kv_a_layernorm)).unflatten(0, (self.heads, -1))
        turned = last.kv_a_proj_with_mqa.weight[latent:]
        slow = int((self.frequencies > HARDLY).sum())  # the first pair that hardly turns
        for part in (self.q_proj, self.k_proj, self.v_proj):
            nn.init.normal_(part.weight, 0, 0.5 * self.hidden**-0.5)
        views = [part.weight.unflatten(0, (self.heads, -1))[..., self.hidden:] for part in (self.q_proj, self.k_proj, self.v_proj)]
        for head in range(self.heads):
            left, sizes, right = torch.linalg.svd((q[head, :nope] * scales).T @ (kv[head, :nope] * scales), full_matrices=False)
            count = 2 * (half - slow)
            places = torch.cat((torch.arange(slow, half), torch.arange(half + slow, self.width)))
            views[0][head, places] = (left[:, :count] * sizes[:count].sqrt()).T / scales
            views[1][head, places] = (right[:count].T * sizes[:count].sqrt()).T / scales
            for pair in range((slow + 1) // 2):
                for part in range(2):
                    views[0][head, 2 * pair + half * part] = q[head, nope + 2 * pair + part]
                    views[1][head, 2 * pair + half * part] = turned[2 * pair + part]
            views[0][head] *= last.scale / self.scale
            views[2][head] = kv[head, nope:]
        self.o_proj.weight.copy_(last.o_proj.weight)
