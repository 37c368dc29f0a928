#!/usr/bin/env python3
"""Records tests/golden/eagle3/pocket_drafts.json.gz: what the pocket model's drafts propose along recorded greedy answers.

    python3 tests/golden/eagle3/make_pocket_drafts.py     # needs torch and safetensors, and pocket/'s weights unpacked

The prompts are every fifth of tests/golden/pocket_greedy.json.gz with the answers that `transformers` gave in float32, as far as
their end of turn. For each slot from the
prompt's last token on (slot p: the target's vectors of position p, the token at p + 1) the file has the chain of three drafts in
float32, by the code the drafts were trained with (pocket/draft.py), and the smallest lead of a chain's largest logits over
the second ones: a chain with a small lead may be another one where sums are rounded differently. Drafts of positions
behind the answer's end are recorded like all others; `taken` counts those before it.
"""
import gzip
import json
import pathlib
import sys

import torch

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "pocket"))
from draft import TAPS, load_draft  # noqa: E402
from modeling import load  # noqa: E402

DRAFTS = ["draft-mla", "draft-llama"]
CHAIN, END = 3, 2050  # drafts of a chain; the token that ends a turn


def answer_of(prompt):
    tokens = prompt["float32"]["tokens"]
    return tokens[:tokens.index(END) + 1] if END in tokens else tokens


@torch.no_grad()
def vectors(target, ids):
    """The target's three vectors of each position: [T, 3 hidden]."""
    bounds = torch.tensor([0, len(ids)], dtype=torch.int32)
    cos, sin = target.angles(torch.arange(len(ids)))
    x, taps = target.embed_tokens(ids), []
    for i, layer in enumerate(target.layers):
        x, _ = layer(x, cos, sin, bounds, len(ids))
        if i in TAPS:
            taps.append(x)
    return torch.cat(taps, -1)


@torch.no_grad()
def chains(target, draft, prompt, answer):
    """([drafts of each slot], [smallest lead of each])."""
    ids = torch.tensor(prompt + answer)
    slots = torch.arange(len(prompt) - 1, len(ids) - 1)
    batch = {"taps": vectors(target, ids[:-1]), "next": ids[1:], "positions": torch.arange(len(ids) - 1), "counted": slots,
             "spans": [(len(slots), len(ids) - 1, slots)]}
    logits = draft.unroll(batch, CHAIN, "own")
    best = torch.stack([step.topk(2, -1).values for step in logits])
    return torch.stack([draft.ids[step.argmax(-1)] for step in logits], 1).tolist(), (best[..., 0] - best[..., 1]).min(0).values.tolist()


def recorded(name, target, prompts):
    """The lines of one draft."""
    draft = load_draft(ROOT / "pocket" / name, target.embed_tokens.weight)
    got, tried, lines = [0] * CHAIN, [0] * CHAIN, []
    for number, prompt in prompts:
        answer = answer_of(prompt)
        drafts, leads = chains(target, draft, prompt["ids"], answer)
        for slot, chain in enumerate(drafts):
            for i, token in enumerate(chain):
                if slot + 1 + i >= len(answer):
                    break
                tried[i] += 1
                got[i] += token == answer[slot + 1 + i]
                if token != answer[slot + 1 + i]:
                    break
        lines.append(json.dumps({"prompt": number, "drafts": drafts, "leads": [float(f"{lead:.3g}") for lead in leads]}, separators=(",", ":")))
    print(f"{name}: taken {got} of {tried}")
    return json.dumps({"draft": name, "taken": got, "tried": tried})[:-1] + ', "prompts": [\n' + ",\n".join(lines) + "\n]}"


def main():
    torch.set_num_threads(1)
    golden = json.loads(gzip.decompress((ROOT / "tests/golden/pocket_greedy.json.gz").read_bytes()))
    target, prompts = load(ROOT / "pocket/model"), list(enumerate(golden["prompts"]))[::5]
    head = {"made_by": "tests/golden/eagle3/make_pocket_drafts.py", "torch": torch.__version__, "chain": CHAIN}
    text = json.dumps(head)[:-1] + ', "drafts": [\n' + ",\n".join(recorded(name, target, prompts) for name in DRAFTS) + "\n]}\n"
    (pathlib.Path(__file__).resolve().parent / "pocket_drafts.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
