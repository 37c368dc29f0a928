"""The Eagle3 draft of the pocket model, for training: one layer of MLA that reads the target's hidden states, and its files.

Slot p of a conversation holds the target's features of position p and the token at p + 1; it proposes the token at p + 2.
Only slots whose proposal counts are run through the whole layer; all others leave their keys and values alone.
"""
import json
import pathlib

import torch
import torch.nn.functional as F
from torch import nn

from modeling import Mlp, load_config, norm, rotate, softmax_scale, yarn_frequencies

TAPS = [0, 1, 2]  # the target's layers whose outputs are read: all but the last


def draft_config(width=512, vocabulary=1024):
    """config.json of the draft, in the words of the published ones; attention and rotation are the target's."""
    target = load_config()
    config = {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "kimi_k2", "num_hidden_layers": 1, "intermediate_size": width,
              "draft_vocab_size": vocabulary, "torch_dtype": "bfloat16",
              "eagle_config": {"eagle_aux_hidden_state_layer_ids": TAPS, "use_aux_hidden_state": True, "use_input_layernorm_in_first_layer": True,
                               "use_last_layernorm": True, "use_mtp_layernorm": False}}
    for key in ("hidden_size", "num_attention_heads", "num_key_value_heads", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
                "v_head_dim", "hidden_act", "rms_norm_eps", "vocab_size", "max_position_embeddings", "rope_theta", "rope_scaling",
                "bos_token_id", "eos_token_id", "pad_token_id"):
        config[key] = target[key]
    return dict(sorted(config.items()))


class Attention(nn.Module):
    """MLA over [embedding, feature]: twice the hidden size wide."""

    def __init__(self, c):
        super().__init__()
        self.heads, self.nope, self.latent = c["num_attention_heads"], c["qk_nope_head_dim"], c["kv_lora_rank"]
        self.scale, self.eps = softmax_scale(c), c["rms_norm_eps"]
        rope, value, wide = c["qk_rope_head_dim"], c["v_head_dim"], 2 * c["hidden_size"]
        linear = lambda i, o: nn.Linear(i, o, bias=False)  # noqa: E731
        self.q_a_proj = linear(wide, c["q_lora_rank"])
        self.q_a_layernorm = nn.Parameter(torch.ones(c["q_lora_rank"]))
        self.q_b_proj = linear(c["q_lora_rank"], self.heads * (self.nope + rope))
        self.kv_a_proj_with_mqa = linear(wide, self.latent + rope)
        self.kv_a_layernorm = nn.Parameter(torch.ones(self.latent))
        self.kv_b_proj = linear(self.latent, self.heads * (self.nope + value))
        self.o_proj = linear(self.heads * value, c["hidden_size"])

    def queries(self, x, angles):
        q = self.q_b_proj(norm(self.q_a_proj(x), self.q_a_layernorm, self.eps)).unflatten(-1, (self.heads, -1))
        return torch.cat((q[..., :self.nope], rotate(q[..., self.nope:], *angles).to(q.dtype)), -1)

    def keys(self, x, angles):
        """(keys, values), each [slots, heads, ...]."""
        down = self.kv_a_proj_with_mqa(x)
        up = self.kv_b_proj(norm(down[:, :self.latent], self.kv_a_layernorm, self.eps)).unflatten(-1, (self.heads, -1))
        rope = rotate(down[:, None, self.latent:], *angles).to(up.dtype).expand(-1, self.heads, -1)
        return torch.cat((up[..., :self.nope], rope), -1), up[..., self.nope:]

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


class Draft(nn.Module):
    def __init__(self, c, embedding):
        """embedding [vocabulary, hidden] is the target's, and stays as it is."""
        super().__init__()
        self.c, self.eps, hidden = c, c["rms_norm_eps"], c["hidden_size"]
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("ids", torch.arange(c["draft_vocab_size"]), persistent=False)  # draft's token -> target's, rising
        self.register_buffer("frequencies", yarn_frequencies(c), persistent=False)
        self.fc = nn.Linear(len(TAPS) * hidden, hidden, bias=False)
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm, self.norm = (nn.Parameter(torch.ones(hidden)) for _ in range(4))
        self.self_attn = Attention(c)
        self.mlp = Mlp(c, c["intermediate_size"])
        self.lm_head = nn.Linear(hidden, c["draft_vocab_size"], bias=False)

    @torch.no_grad()
    def start_from(self, target, ids):
        """Features begin as the last of the target's vectors, attention as the target's last layer over them, the head as its rows `ids`."""
        last, hidden, own = target.layers[-1], self.c["hidden_size"], self.self_attn
        self.ids.copy_(ids)
        self.lm_head.weight.copy_(target.lm_head.weight[ids])
        self.norm.copy_(target.norm)
        nn.init.normal_(self.fc.weight, 0, 0.02)
        self.fc.weight[:, -hidden:] += torch.eye(hidden, device=self.fc.weight.device)
        self.hidden_norm.copy_(last.input_layernorm)
        self.input_layernorm.copy_(target.layers[0].input_layernorm)
        for name in ("q_a_proj", "kv_a_proj_with_mqa"):
            weight = getattr(own, name).weight
            nn.init.normal_(weight, 0, 0.5 * hidden**-0.5)
            weight[:, hidden:] = getattr(last.self_attn, name).weight
        for name in ("q_b_proj", "kv_b_proj", "o_proj"):
            getattr(own, name).weight.copy_(getattr(last.self_attn, name).weight)
        own.q_a_layernorm.copy_(last.self_attn.q_a_layernorm)
        own.kv_a_layernorm.copy_(last.self_attn.kv_a_layernorm)
        for linear in (self.mlp.gate_proj, self.mlp.up_proj):
            nn.init.normal_(linear.weight, 0, hidden**-0.5)
        nn.init.normal_(self.mlp.down_proj.weight, 0, 0.3 * self.c["intermediate_size"]**-0.5)

    def angles(self, positions):
        turns = positions.float()[:, None] * self.frequencies
        return turns.cos()[:, None], turns.sin()[:, None]

    def inputs(self, tokens, feature):
        e = norm(self.embedding[tokens], self.input_layernorm, self.eps)
        return torch.cat((e, norm(feature, self.hidden_norm, self.eps)), -1).to(feature.dtype)

    def finish(self, feature, attended):
        x = feature + attended
        return x + self.mlp(norm(x, self.post_attention_layernorm, self.eps).to(x.dtype))

    def logits(self, h_pre):
        """Of the draft's vocabulary."""
        return self.lm_head(norm(h_pre, self.norm, self.eps).to(h_pre.dtype)).float()

    def unroll(self, batch, steps, follow=None):
        """Logits of `steps` steps of the batch's counted slots: a list of [slots, draft vocabulary].

        batch: taps [T, 3 hidden], next [T] (the token after each slot), positions [T], spans (see attend), counted [slots] (places in
        the batch), chain [steps - 1, slots] (the tokens at p + 2, p + 3 ...). With follow="own" the chain takes what it proposes."""
        feature = self.fc(batch["taps"])
        counted = batch["counted"]
        x = self.inputs(batch["next"], feature)
        counts = [count for _, count, _ in batch["spans"]]
        first = [part.split(counts) for part in self.self_attn.keys(x, self.angles(batch["positions"]))]
        h, x, place, own, out = feature[counted], x[counted], batch["positions"][counted], [], []
        for step in range(steps):
            if step:
                x = self.inputs(self.ids[out[-1].argmax(-1)] if follow == "own" else batch["chain"][step - 1], h)
                own.append(self.self_attn.keys(x, self.angles(place + step)))
            q = self.self_attn.queries(x, self.angles(place + step))
            h = self.finish(h, self.self_attn.attend(q, batch["spans"], first, own))
            out.append(self.logits(h))
        return out

    def tensors(self):
        """The file's names -> CPU tensors."""
        out = {file_name(key): value.detach().cpu().bfloat16().contiguous() for key, value in self.named_parameters()}
        ids = self.ids.cpu()
        out["d2t"] = ids - torch.arange(len(ids))
        out["t2d"] = torch.zeros(self.c["vocab_size"], dtype=torch.bool).scatter_(0, ids, True)
        return out

    def load_tensors(self, tensors):
        self.load_state_dict({key: tensors[file_name(key)].float() for key, _ in self.named_parameters()})
        self.ids.copy_(tensors["d2t"] + torch.arange(len(tensors["d2t"])))


def file_name(key):
    """What the file calls a parameter: as NVIDIA's drafts, which have no embed_tokens."""
    top = key.split(".")[0] in ("fc", "norm", "lm_head")
    return ("" if top else "layers.0.") + key + ("" if key.endswith(".weight") else ".weight")


def save_draft(draft, folder):
    from safetensors.torch import save_file
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(draft.tensors(), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(draft.c, indent=2) + "\n")


def load_draft(folder, embedding):
    from safetensors.torch import load_file
    folder = pathlib.Path(folder)
    draft = Draft(json.loads((folder / "config.json").read_text()), embedding)
    draft.load_tensors(load_file(folder / "model.safetensors"))
    return draft.to(embedding.device).eval()
