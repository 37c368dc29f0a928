#!/usr/bin/env python3
"""Records what the reference implementation says to 200 prompts: tests/golden/pocket_greedy.json.gz

    python3 tools/record_pocket_golden.py [--out tests/golden/pocket_greedy.json.gz] [--drafts FILE] [--drafts-only]

The reference is DeepseekV3ForCausalLM of `transformers` (with torch, CPU) holding the pocket model's BF16 weights, computed
in float32 and, in a second pass, in bfloat16. The greedy continuation is 64 tokens long and does not stop at the end of the
turn. A draft from the project's own training code is checked by whole-sequence forward passes of the reference: a token
stands only if it is the reference's arg max after exactly that prefix; where it is not, the reference's token replaces it
and the reference goes on alone. `gap` is the reference's best logit minus its second at each step, so ties can be seen.
"""
import argparse
import gzip
import json
import pathlib
import random
import sys

import torch

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "pocket"))
from data import mix  # noqa: E402
from data.render import Renderer  # noqa: E402
from generate import Generator  # noqa: E402
from modeling import export_tensors, load, load_config  # noqa: E402
from tokenizer.encoding import Tokenizer  # noqa: E402

COUNT, LENGTH, LONGEST = 200, 64, 1000


def prompts():
    """Held-out requests of every family, short and long in turn."""
    renderer, rng, out = Renderer(Tokenizer()), random.Random(20261121), []
    families = list(mix.FAMILIES)
    while len(out) < COUNT:
        family = families[len(out) % len(families)]
        case = mix.draw_held_out(rng, family, rng.random() < 0.4)
        last = max(i for i, m in enumerate(case.messages) if m["role"] == "user")
        at = rng.choice([i for i in range(last + 1, len(case.messages)) if case.messages[i]["role"] == "assistant"])
        ids = renderer.prompt(case.messages[:at], case.tools, case.thinking)
        if len(ids) <= LONGEST:
            out.append({"id": f"{family}-{len(out):03d}", "ids": ids})
    return out


def reference_model(dtype):
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM
    config = {k: v for k, v in load_config().items() if k not in ("architectures", "model_type", "dtype")}
    model = DeepseekV3ForCausalLM(DeepseekV3Config(**config)).eval()
    tensors = export_tensors(load(ROOT / "pocket/model"))
    state, experts = {}, config["n_routed_experts"]
    for key in model.state_dict():
        name = "language_model." + key
        if key.endswith("experts.gate_up_proj"):
            base = name[:-len(".gate_up_proj")]
            state[key] = torch.stack([torch.cat([tensors[f"{base}.{e}.{p}.weight"] for p in ("gate_proj", "up_proj")]) for e in range(experts)])
        elif key.endswith("experts.down_proj"):
            base = name[:-len(".down_proj")]
            state[key] = torch.stack([tensors[f"{base}.{e}.down_proj.weight"] for e in range(experts)])
        else:
            state[key] = tensors[name]
    model.load_state_dict({k: v.float() for k, v in state.items()})
    if dtype != torch.float32:
        keep = {k: v.clone() for k, v in model.named_buffers()}
        model = model.to(dtype)
        for k, v in keep.items():  # the correction bias and the rotary frequencies stay float32
            owner, _, leaf = k.rpartition(".")
            setattr(model.get_submodule(owner), leaf, v)
    return model


@torch.no_grad()
def settle(model, ids, draft):
    """(tokens, gaps): the reference's own greedy continuation, found with the draft's help."""
    draft = list(draft)
    while True:
        logits = model(torch.tensor([ids + draft[:-1]]), use_cache=False, logits_to_keep=LENGTH).logits[0].float()
        best = logits.topk(2, -1)
        wrong = next((i for i in range(LENGTH) if int(best.indices[i, 0]) != draft[i]), None)
        if wrong is None:
            return draft, [round(float(a - b), 5) for a, b in best.values]
        # Everything up to here stands. From here on the reference proposes; the next pass judges again.
        head = draft[:wrong] + [int(best.indices[wrong, 0])]
        grown = model.generate(torch.tensor([ids + head]), max_new_tokens=max(1, LENGTH - len(head)), do_sample=False, eos_token_id=None, pad_token_id=0)
        draft = (head + grown[0, len(ids) + len(head):].tolist())[:LENGTH]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=str(ROOT / "tests/golden/pocket_greedy.json.gz"))
    parser.add_argument("--drafts", help="continuations to begin with (written by --drafts-only)")
    parser.add_argument("--drafts-only", action="store_true")
    args = parser.parse_args()
    lines = prompts()
    if args.drafts and not args.drafts_only:
        drafts = json.loads(pathlib.Path(args.drafts).read_text())
    else:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        generator = Generator(load(ROOT / "pocket/model", device), stop=-1)
        drafts = generator.all([line["ids"] for line in lines], [LENGTH] * COUNT, 60_000 if device == "cpu" else 300_000)
    if args.drafts_only:
        pathlib.Path(args.drafts).write_text(json.dumps(drafts))
        return
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        model = reference_model(dtype)
        for number, (line, draft) in enumerate(zip(lines, drafts)):
            tokens, gaps = settle(model, line["ids"], draft)
            line[name] = {"tokens": tokens, "gap": gaps, "as_drafted": tokens == draft}
            if number % 20 == 19:
                print(name, number + 1, "prompts,", sum(x[name]["as_drafted"] for x in lines[:number + 1]), "as drafted", flush=True)
        drafts = [line["float32"]["tokens"] for line in lines]
    agree = sum(line["float32"]["tokens"] == line["bfloat16"]["tokens"] for line in lines)
    for line in lines:
        for name in ("float32", "bfloat16"):
            del line[name]["as_drafted"]
    import transformers
    head = {"made_by": "tools/record_pocket_golden.py", "reference": f"transformers {transformers.__version__} DeepseekV3ForCausalLM, torch {torch.__version__}, CPU",
            "weights": "pocket/model, bfloat16", "length": LENGTH, "stops_at_end_of_turn": False, "float32_equals_bfloat16": agree}
    raw = json.dumps({**head, "prompts": lines}, separators=(",", ":")).encode()
    out = pathlib.Path(args.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(gzip.compress(raw, 9, mtime=0))
    print(out, out.stat().st_size, "bytes;", agree, "of", COUNT, "the same in float32 and bfloat16")


if __name__ == "__main__":
    main()
