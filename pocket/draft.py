"""Eagle3 drafts of the pocket model, for training: one layer that reads the target's hidden states, and its files.

A draft has the attention of one of the published types: "mla" or "llama" (draft_attention.py).

Slot p of a conversation holds the target's features of position p and the token at p + 1; it proposes the token at p + 2.
Only slots whose proposal counts are run through the whole layer; all others leave their keys and values alone.
"""
import json
import pathlib

import torch
from torch import nn

from draft_attention import HeadsAttention, LatentAttention
from modeling import Mlp, load_config, norm

TAPS = [0, 1, 2]  # the target's layers whose outputs are read: all but the last


TYPES = {
    # As NVIDIA's, which have no embed_tokens.
    "mla": {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "kimi_k2"},
    # As lightseekorg/kimi-k2.5-eagle3, but for embed_tokens, which is the target's here, and eagle_config: K2.5 is deep enough for the usual taps.
    "llama": {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "attention_bias": False, "attention_dropout": 0.0,
              "initializer_range": 0.02, "rms_norm_eps": 1e-6, "sliding_window": None, "tie_word_embeddings": False, "use_cache": True},
}


def draft_config(kind, width=512, vocabulary=1024):
    """config.json of a draft of this type, in the words of the published ones; heads and rotation are the target's."""
    target = load_config()
    config = {**TYPES[kind], "num_hidden_layers": 1, "intermediate_size": width, "draft_vocab_size": vocabulary, "torch_dtype": "bfloat16",
              "eagle_config": {"eagle_aux_hidden_state_layer_ids": TAPS, "use_aux_hidden_state": True, "use_input_layernorm_in_first_layer": True,
                               "use_last_layernorm": True, "use_mtp_layernorm": False}}
    keys = ["hidden_size", "num_attention_heads", "num_key_value_heads", "hidden_act", "vocab_size", "max_position_embeddings", "rope_theta", "rope_scaling",
            "bos_token_id", "eos_token_id", "pad_token_id"]
    if kind == "mla":
        keys += ["q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "rms_norm_eps"]
    else:
        config["head_dim"] = target["v_head_dim"]
    return dict(sorted((config | {key: target[key] for key in keys}).items()))


class Draft(nn.Module):
    def __init__(self, c, embedding):
        """embedding [vocabulary, hidden] is the target's, and stays as it is."""
        super().__init__()
        self.c, self.eps, hidden = c, c["rms_norm_eps"], c["hidden_size"]
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("ids", torch.arange(c["draft_vocab_size"]), persistent=False)  # draft's token -> target's, rising
        self.fc = nn.Linear(len(TAPS) * hidden, hidden, bias=False)
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm, self.norm = (nn.Parameter(torch.ones(hidden)) for _ in range(4))
        self.kind = "llama" if c["architectures"][0].startswith("Llama") else "mla"
        self.self_attn = (HeadsAttention if self.kind == "llama" else LatentAttention)(c)
        self.mlp = Mlp(c, c["intermediate_size"])
        self.lm_head = nn.Linear(hidden, c["draft_vocab_size"], bias=False)

    @torch.no_grad()
    def start_from(self, target, ids):
        """Features begin as the last of the target's vectors, attention as the target's last layer over them, the head as its rows `ids`."""
        last, hidden = target.layers[-1], self.c["hidden_size"]
        self.ids.copy_(ids)
        self.lm_head.weight.copy_(target.lm_head.weight[ids])
        self.norm.copy_(target.norm)
        nn.init.normal_(self.fc.weight, 0, 0.02)
        self.fc.weight[:, -hidden:] += torch.eye(hidden, device=self.fc.weight.device)
        self.hidden_norm.copy_(last.input_layernorm)
        self.input_layernorm.copy_(target.layers[0].input_layernorm)
        self.self_attn.start_from(last.self_attn, last.input_layernorm)
        for linear in (self.mlp.gate_proj, self.mlp.up_proj):
            nn.init.normal_(linear.weight, 0, hidden**-0.5)
        nn.init.normal_(self.mlp.down_proj.weight, 0, 0.3 * self.c["intermediate_size"]**-0.5)

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
        first = [part.split(counts) for part in self.self_attn.keys(x, self.self_attn.angles(batch["positions"]))]
        h, x, place, own, out = feature[counted], x[counted], batch["positions"][counted], [], []
        for step in range(steps):
            if step:
                x = self.inputs(self.ids[out[-1].argmax(-1)] if follow == "own" else batch["chain"][step - 1], h)
                own.append(self.self_attn.keys(x, self.self_attn.angles(place + step)))
            q = self.self_attn.queries(x, self.self_attn.angles(place + step))
            h = self.finish(h, self.self_attn.attend(q, batch["spans"], first, own))
            out.append(self.logits(h))
        return out

    def file_name(self, key):
        """What the file calls a parameter: the layer as the published drafts of the type do."""
        layer = {"mla": "layers.0.", "llama": "midlayer."}[self.kind]
        top = key.split(".")[0] in ("fc", "norm", "lm_head")
        return ("" if top else layer) + key + ("" if key.endswith(".weight") else ".weight")

    def tensors(self):
        """The file's names -> CPU tensors."""
        out = {self.file_name(key): value.detach().cpu().bfloat16().contiguous() for key, value in self.named_parameters()}
        ids = self.ids.cpu()
        out["d2t"] = ids - torch.arange(len(ids))
        out["t2d"] = torch.zeros(self.c["vocab_size"], dtype=torch.bool).scatter_(0, ids, True)
        return out

    def load_tensors(self, tensors):
        self.load_state_dict({key: tensors[self.file_name(key)].float() for key, _ in self.named_parameters()})
        self.ids.copy_(tensors["d2t"] + torch.arange(len(tensors["d2t"])))


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
