"""The pocket model's vision encoder and projector (MoonViT-3D of K2.5, one frame), for training and checks.

Names of parameters are those of the published checkpoints. Pictures are packed: patches of all of them one after another, the
four of a token together (data/see_draw.py patches_of), and no picture sees another. Kept in float32, computed in bfloat16 under
autocast.
"""
import json
import pathlib

import torch
import torch.nn.functional as F
from torch import nn

CONFIG = {"patch_size": 14, "init_pos_emb_height": 16, "init_pos_emb_width": 16, "init_pos_emb_time": 4, "pos_emb_type": "divided_fixed",
          "vt_num_attention_heads": 2, "vt_num_hidden_layers": 6, "vt_hidden_size": 144, "vt_intermediate_size": 288,
          "merge_kernel_size": [2, 2], "video_attn_type": "spatial_temporal", "merge_type": "sd2_tpool",
          "mm_projector_type": "patchmerger", "mm_hidden_size": 144, "projector_hidden_act": "gelu", "projector_ln_eps": 1e-5, "text_hidden_size": 256}
SHARD = "model-vision.safetensors"
PAD_HEADS = 0  # heads are filled up to this size with zeros on a GPU


def attend(q, k, v, bounds, longest):
    """Each picture for itself. q, k, v: [patches, heads, 72]; bounds: int32 [pictures + 1]."""
    scale = q.shape[-1] ** -0.5
    if q.is_cuda and q.dtype == torch.bfloat16:
        from torch.nn.attention.varlen import varlen_attn
        head = q.shape[-1]
        q, k, v = (F.pad(t, (0, max(head, PAD_HEADS) - head)).contiguous() for t in (q, k, v))
        return varlen_attn(q, k, v, bounds, bounds, longest, longest, scale=scale)[..., :head]
    parts = []
    for one in zip(*(t.split(bounds.diff().tolist()) for t in (q, k, v))):
        one = [t.transpose(0, 1)[None] for t in one]
        parts.append(F.scaled_dot_product_attention(*one, scale=scale)[0].transpose(0, 1))
    return torch.cat(parts)


def turn(x, cos, sin):
    """Neighbours are rotated together, in float32. x: [patches, heads, 72]; cos, sin: [patches, 1, 36]."""
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).to(x.dtype)


class Block(nn.Module):
    def __init__(self, v):
        super().__init__()
        hidden, self.heads = v["vt_hidden_size"], v["vt_num_attention_heads"]
        self.norm0, self.norm1 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.wqkv, self.wo = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.mlp = nn.ModuleDict({"fc0": nn.Linear(hidden, v["vt_intermediate_size"]), "fc1": nn.Linear(v["vt_intermediate_size"], hidden)})

    def forward(self, x, cos, sin, bounds, longest):
        q, k, v = self.wqkv(self.norm0(x)).unflatten(-1, (3, self.heads, -1)).unbind(1)
        seen = attend(turn(q, cos, sin), turn(k, cos, sin), v, bounds, longest)
        x = x + self.wo(seen.flatten(-2))
        return x + self.mlp["fc1"](F.gelu(self.mlp["fc0"](self.norm1(x)), approximate="tanh"))


class PatchEmbed(nn.Module):
    def __init__(self, v):
        super().__init__()
        hidden = v["vt_hidden_size"]
        self.proj = nn.Conv2d(3, hidden, v["patch_size"], v["patch_size"])
        self.pos_emb = nn.Module()
        self.pos_emb.weight = nn.Parameter(torch.randn(v["init_pos_emb_height"], v["init_pos_emb_width"], hidden) * 0.1)


def stretches(table, most):
    """[size, place, row of the table]: what bicubic interpolation of a table's side to this size takes of each row."""
    out = torch.zeros(most + 1, most, table)
    for size in range(1, most + 1):
        if size == table:
            out[size, :size] = torch.eye(table)
            continue
        rows = torch.eye(table)[None, :, :, None].expand(1, table, table, 2)
        out[size, :size] = F.interpolate(rows, size=(size, 2), mode="bicubic", align_corners=False)[0, :, :, 0].T
    return out


class Sight(nn.Module):
    """most: the most patches that a side of a picture may have."""

    def __init__(self, v=None, most=32):
        super().__init__()
        self.v = v = v or CONFIG
        hidden, wide = v["vt_hidden_size"], 4 * v["vt_hidden_size"]
        self.vision_tower = nn.Module()
        self.vision_tower.patch_embed = PatchEmbed(v)
        self.vision_tower.encoder = nn.Module()
        self.vision_tower.encoder.blocks = nn.ModuleList(Block(v) for _ in range(v["vt_num_hidden_layers"]))
        self.vision_tower.encoder.final_layernorm = nn.LayerNorm(hidden)
        self.mm_projector = nn.Module()
        self.mm_projector.pre_norm = nn.LayerNorm(hidden, eps=v["projector_ln_eps"])
        self.mm_projector.proj = nn.Sequential(nn.Linear(wide, wide), nn.GELU(), nn.Linear(wide, v["text_hidden_size"]))
        self.register_buffer("down", stretches(v["init_pos_emb_height"], most), persistent=False)
        self.register_buffer("across", stretches(v["init_pos_emb_width"], most), persistent=False)
        head = hidden // v["vt_num_attention_heads"]
        self.register_buffer("frequencies", 10000 ** (-torch.arange(0, head, 4).float() / head), persistent=False)

    def initialise(self, spread):
        """spread: the standard deviation of the rows at first."""
        deep = (2 * self.v["vt_num_hidden_layers"]) ** -0.5
        for name, p in self.named_parameters():
            if p.dim() < 2 or "pos_emb" in name:
                continue
            scale = p[0].numel() ** -0.5
            nn.init.normal_(p, 0, scale * (deep if name.endswith(("wo.weight", "fc1.weight")) else spread if "proj.2" in name else 1))
        with torch.no_grad():
            for name, p in self.named_parameters():
                if name.endswith("bias"):
                    p.zero_()

    def features(self, pixels, places, grids, bounds, longest):
        """[patches, hidden]. pixels: uint8 [patches, 588]; places, grids: [patches, 2], the patch's row and column and how many its
        picture has; bounds: int32 [pictures + 1]; longest: no picture has more patches."""
        tower = self.vision_tower
        embed = tower.patch_embed
        places, grids = places.long(), grids.long()
        x = pixels.float() / 127.5 - 1
        x = F.linear(x.to(torch.bfloat16) if x.is_cuda else x, embed.proj.weight.flatten(1), embed.proj.bias)
        rows, columns = self.down[grids[:, 0], places[:, 0]], self.across[grids[:, 1], places[:, 1]]
        x = x.float() + (rows[:, :, None] * columns[:, None, :]).flatten(1) @ embed.pos_emb.weight.flatten(0, 1)
        turns = places.flip(-1).float()[:, None, :] * self.frequencies[:, None]  # column, row
        turns = turns.flatten(1)[:, None]
        cos, sin = turns.cos(), turns.sin()
        for block in tower.encoder.blocks:
            x = block(x, cos, sin, bounds, longest)
        return tower.encoder.final_layernorm(x)

    def rows(self, features):
        """[patches / 4, text hidden size]"""
        return self.mm_projector.proj(self.mm_projector.pre_norm(features).reshape(features.shape[0] // 4, -1))

    def forward(self, *packed):
        return self.rows(self.features(*packed))


def pack(pictures, device="cpu"):
    """The arguments of Sight for pictures, uint8 [height, width, 3] each."""
    import numpy as np
    from data.see_draw import patches_of
    parts = [patches_of(p) for p in pictures]
    grids = [np.tile(places.max(0) + 1, (len(places), 1)) for _, places in parts]
    bounds = torch.tensor([0, *(len(part[0]) for part in parts)]).cumsum(0).int()
    to = lambda a: torch.from_numpy(np.concatenate(a)).to(device)  # noqa: E731
    return to([a for a, _ in parts]), to([b for _, b in parts]), to(grids), bounds.to(device), int(bounds.diff().max())


def rounded(value, bits):
    """To bf16 with this many bits of mantissa (7: all), to the nearest, ties to even."""
    words, drop = value.detach().float().cpu().to(torch.bfloat16).view(torch.int16).int() & 0xFFFF, 7 - bits
    if drop:
        words = (words + (1 << (drop - 1)) - 1 + (words >> drop & 1)) >> drop << drop
    return words.to(torch.int16).view(torch.bfloat16)


def save_sight(sight, file, bits=7):
    from safetensors.torch import save_file
    pathlib.Path(file).parent.mkdir(parents=True, exist_ok=True)
    save_file({name: rounded(p, bits if p.dim() > 1 else 7).contiguous() for name, p in sight.state_dict().items()}, str(file), metadata={"format": "pt"})


def load_sight(folder, device="cpu"):
    """From a checkpoint's folder, or a folder with the one file."""
    from safetensors.torch import load_file
    folder = pathlib.Path(folder)
    config = folder / "config.json"
    sight = Sight(json.loads(config.read_text())["vision_config"] if config.exists() else CONFIG)
    sight.load_state_dict({name: p.float() for name, p in load_file(str(folder / SHARD)).items()})
    return sight.to(device).eval()
