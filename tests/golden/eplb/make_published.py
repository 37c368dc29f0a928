#!/usr/bin/env python3
"""Writes published.json.gz: loads of experts, and the placements that deepseek-ai/EPLB finds for them.

    python3 tests/golden/eplb/make_published.py PATH_OF_eplb.py

Loads: Zipf-like ones of Kimi K2's 384 experts, and those of the pocket model on its own held-out questions (three layers of 16
experts), counted by its own router. It needs PyTorch, numpy, safetensors and regex.
"""
import gzip
import importlib.util
import json
import pathlib
import sys

import numpy as np
import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "pocket"))
from data.render import Renderer  # noqa: E402
from modeling import load  # noqa: E402
from tokenizer.encoding import Tokenizer  # noqa: E402


def pocket_loads(tasks):
    """[layers][16] tokens that each expert took, of the questions of some tasks."""
    model, renderer = load(HERE.parents[2] / "pocket/model"), Renderer(Tokenizer())
    counts = []
    hooks = [layer.mlp.register_forward_hook(lambda module, inputs, out, at=i: counts[at].append(out[1].numpy()))
             for i, layer in enumerate(l for l in model.layers if not l.dense)]
    counts = [[] for _ in hooks]
    with gzip.open(HERE.parents[2] / "pocket/eval/cases.jsonl.gz", "rt") as lines:
        cases = [json.loads(line) for line in lines]
    for case in [case for case in cases if case["task"] in tasks][:60]:
        text = "".join(message["content"] or "" for message in case["messages"] if isinstance(message["content"], str))
        with torch.no_grad():
            model.logits(torch.tensor(renderer.tokenizer.encode(text)))
    return [np.sum(layer, 0).astype(int).tolist() for layer in counts]


def zipf_loads(random, experts, exponent, tokens=1 << 18):
    weights = 1 / np.arange(1, experts + 1) ** exponent
    return np.round(random.permutation(weights / weights.sum()) * tokens * random.uniform(0.8, 1.2, experts)).astype(int).tolist()


def main():
    spec = importlib.util.spec_from_file_location("eplb", sys.argv[1])
    eplb = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(eplb)
    random = np.random.default_rng(7)
    cases = []

    def add(name, loads, slots, ranks, nodes=1, groups=1):
        placed, _, _ = eplb.rebalance_experts(torch.tensor(loads), slots, groups, nodes, ranks)
        cases.append({"name": name, "experts": len(loads[0]), "slots": slots, "ranks": ranks, "nodes": nodes, "groups": groups,
                      "loads": loads, "published": placed.tolist()})

    for exponent in (0.3, 0.7, 1.1):
        loads = [zipf_loads(random, 384, exponent) for _ in range(2)]
        for slots, ranks, nodes, groups in ((384, 16, 2, 1), (400, 16, 2, 1), (416, 32, 4, 1), (448, 8, 1, 1), (512, 64, 8, 8), (400, 16, 2, 8)):
            add(f"zipf {exponent}", loads, slots, ranks, nodes, groups)
    for tasks in (("arithmetic",), ("tools", "json"), ("chat", "first-words")):
        loads = pocket_loads(tasks)
        for slots, ranks in ((16, 2), (16, 4), (18, 2), (20, 4), (24, 8)):
            add("pocket " + " ".join(tasks), loads, slots, ranks)
    text = json.dumps({"cases": cases}, separators=(",", ":"))
    (HERE / "published.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(len(cases), "cases,", (HERE / "published.json.gz").stat().st_size, "bytes")


if __name__ == "__main__":
    main()
