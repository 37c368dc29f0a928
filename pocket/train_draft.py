#!/usr/bin/env python3
"""Trains an Eagle3 draft of the pocket model (draft.py), in three parts that each go on from the files of the one before:

    python3 pocket/train_draft.py features --minutes 8      # what the target sees and says, of made-up conversations
    python3 pocket/train_draft.py train --type llama --minutes 14 --out DIR
    python3 pocket/train_draft.py measure DIR               # how many drafts the target would take

A GPU is used where there is one. Conversations are those of the training side (data/mix.py); the held-out ones of the evaluation are
never drawn. The label of a slot is what the target itself says greedily there; the draft is unrolled over three steps as it is
when it serves (each reads what the one before put out), given the conversation's own tokens.
"""
import argparse
import gzip
import json
import math
import pathlib
import random
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from data import mix  # noqa: E402
from data.render import Renderer  # noqa: E402
from draft import TAPS, TYPES, Draft, draft_config, load_draft, save_draft  # noqa: E402
from modeling import load, norm  # noqa: E402
from tokenizer.encoding import Tokenizer  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
LONGEST, LEAST_SHARE = 1024, 1 / 12  # of a conversation that is learnt from: tokens, and what part of them the assistant writes
STEPS, WEIGHTS = 3, (1.0, 0.8, 0.64)
WRITTEN, START = 1, 2
NONE = 65535  # no label


def target_model(device):
    return load(HERE / "model", device).requires_grad_(False)


def conversations(seed):
    renderer = Renderer(Tokenizer())
    for case in mix.stream(random.Random(f"pocket draft {seed}")):
        ids, flags = renderer.training(case)
        if len(ids) <= LONGEST and sum(flags) >= LEAST_SHARE * len(ids):
            yield ids, flags


@torch.no_grad()
def see(model, docs, device):
    """Features [T, 3 hidden] and labels [T] (the target's choice of the next token where the assistant writes it) of several documents."""
    ids = torch.tensor([i for d, _ in docs for i in d], device=device)
    lengths = torch.tensor([len(d) for d, _ in docs])
    starts = lengths.cumsum(0) - lengths
    positions = torch.arange(len(ids)) - starts.repeat_interleave(lengths)
    bounds = torch.cat((starts, starts[-1:] + lengths[-1:])).int().to(device)
    cos, sin = model.angles(positions.to(device))
    x, taps = model.embed_tokens(ids), []
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
        for i, layer in enumerate(model.layers):
            x, _ = layer(x, cos, sin, bounds, int(lengths.max()))
            if i in TAPS:
                taps.append(x.bfloat16())
        asked = torch.tensor([i + 1 < len(d) and flags[i + 1] == 1 for d, flags in docs for i in range(len(d))], device=device)
        best = model.lm_head(norm(x[asked], model.norm, model.c["rms_norm_eps"])).argmax(-1)
    labels = torch.full_like(ids, NONE)
    labels[asked] = best
    return torch.cat(taps, -1).view(torch.int16).cpu().numpy(), labels.cpu().numpy().astype(np.uint16)


def features(args, device):
    model = target_model(device)
    per_step = 65536 if device.type == "cuda" else 2048
    for name, seed, minutes in (("check", "check", args.check_minutes), ("train", "train", args.minutes)):
        folder = pathlib.Path(args.work) / name
        folder.mkdir(parents=True, exist_ok=True)
        begun, docs, count, written = time.time(), [], 0, 0
        with open(folder / "taps", "wb") as taps, open(folder / "words", "wb") as words:
            for doc in conversations(seed):
                docs.append(doc)
                if sum(len(ids) for ids, _ in docs) < per_step:
                    continue
                seen, labels = see(model, docs, device)
                taps.write(seen.tobytes())
                flags = np.concatenate([np.array(f, np.uint16) * WRITTEN + (np.arange(len(f)) == 0).astype(np.uint16) * START for _, f in docs])
                ids = np.array([i for d, _ in docs for i in d], np.uint16)
                words.write(np.stack((ids, labels, flags), 1).tobytes())
                count, written, docs = count + len(ids), written + int((flags & WRITTEN).sum()), []
                if time.time() - begun > 60 * minutes:
                    break
        print(f"{name}: {count} tokens, of which the assistant writes {written}, in {time.time() - begun:.0f} s", flush=True)


class Store:
    """The conversations of a folder of features."""

    def __init__(self, folder):
        folder = pathlib.Path(folder)
        words = np.fromfile(folder / "words", np.uint16).reshape(-1, 3)
        self.ids, self.labels, flags = (words[:, i].astype(np.int64) for i in range(3))
        self.written = (flags & WRITTEN) != 0
        self.taps = np.memmap(folder / "taps", np.int16, mode="r").reshape(len(words), -1)
        self.starts = np.flatnonzero(flags & START)
        self.ends = np.append(self.starts[1:], len(words))

    def batches(self, order, tokens):
        part, size = [], 0
        for doc in order:
            part.append(doc)
            size += self.ends[doc] - self.starts[doc]
            if size >= tokens:
                yield part
                part, size = [], 0

    def batch(self, docs, device, steps=STEPS):
        """What Draft.unroll takes, and labels [steps, slots] of the target's tokens (-1: not counted)."""
        taps, after, positions, spans, counted, chain, labels, truth = [], [], [], [], [], [], [], []
        base = 0
        for doc in docs:
            a, b = self.starts[doc], self.ends[doc]
            ids, wrote, said = self.ids[a:b], self.written[a:b], self.labels[a:b]
            slots = np.flatnonzero(wrote[1:-1] & wrote[2:])
            if len(slots) == 0:
                continue
            count = len(ids) - 1  # the last token has none after it
            taps.append(self.taps[a:b - 1])
            after.append(ids[1:])
            positions.append(np.arange(count))
            spans.append((len(slots), count, torch.from_numpy(slots).to(device)))
            counted.append(slots + base)
            reach = slots[None] + 2 + np.arange(steps)[:, None]  # places of the tokens to be proposed
            inside = np.minimum(reach, len(ids) - 1)
            labels.append(np.where((reach < len(ids)) & wrote[inside], said[inside - 1], -1))
            chain.append(ids[inside[:-1]])
            truth.append(ids[inside])
            base += count
        put = lambda parts, axis=0: torch.from_numpy(np.concatenate(parts, axis)).to(device)  # noqa: E731
        batch = {"taps": put(taps).view(torch.bfloat16).float(), "next": put(after), "positions": put(positions), "counted": put(counted),
                 "chain": put(chain, 1), "spans": spans}
        return batch, put(labels, 1), put(truth, 1)


def most_said(store, size, vocabulary):
    """The `size` tokens that the target says most, rising."""
    labels = store.labels[store.labels != NONE]
    counts = np.bincount(labels, minlength=vocabulary)
    ids = np.sort(np.argsort(-counts, kind="stable")[:size])
    print(f"a draft vocabulary of {size} has {100 * counts[ids].sum() / counts.sum():.2f} % of what the target says", flush=True)
    return torch.from_numpy(ids)


def train(args, device):
    torch.manual_seed(1)
    target = target_model(device)
    store, check = Store(pathlib.Path(args.work) / "train"), Store(pathlib.Path(args.work) / "check")
    if args.start_from:
        draft = load_draft(args.start_from, target.embed_tokens.weight).train()
        ids = draft.ids
    else:
        config = draft_config(args.type, args.width, args.vocabulary)
        draft = Draft(config, target.embed_tokens.weight).to(device)
        ids = most_said(store, args.vocabulary, config["vocab_size"]).to(device)
        draft.start_from(target, ids)
    back = torch.full((draft.c["vocab_size"],), -100, device=device)  # target's token -> draft's
    back[ids] = torch.arange(len(ids), device=device)
    parameters = list(draft.parameters())
    optimizer = torch.optim.AdamW([{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.02},
                                   {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}],
                                  lr=args.lr, betas=(0.9, 0.97), eps=1e-9)
    rng, begun, step, log, last_check = random.Random(args.seed), time.time(), 0, [], 0
    recent = np.zeros((2, STEPS))
    while True:
        order = list(range(len(store.starts)))
        rng.shuffle(order)
        for docs in store.batches(order, args.tokens):
            progress = (time.time() - begun) / (60 * args.minutes)
            if progress >= 1:
                break
            rate = args.lr * min(1.0, (step + 1) / 40) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))
            for group in optimizer.param_groups:
                group["lr"] = rate
            batch, labels, _ = store.batch(docs, device)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
                logits = draft.unroll(batch, STEPS)
            loss = 0.0
            for i, (out, label) in enumerate(zip(logits, labels)):
                wanted = torch.where(label >= 0, back[label.clamp(min=0)], -100)
                loss = loss + WEIGHTS[i] * F.cross_entropy(out, wanted, ignore_index=-100)
                recent[:, i] += [(back[label.clamp(min=0)] == out.argmax(-1))[label >= 0].sum().item(), (label >= 0).sum().item()]
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            step += 1
            if step % 20 == 0:
                line = {"type": draft.kind, "step": step, "seconds": round(time.time() - begun), "loss": round(loss.item(), 4), "rate": round(rate, 6),
                        "right": [round(float(x), 4) for x in recent[0] / recent[1]]}
                recent[:] = 0
                if time.time() - last_check > args.check_every:
                    line["taken"], last_check = taken(draft, check, device, 10_000)[0], time.time()
                    save_draft(draft, args.out)
                log.append(line)
                print(json.dumps(line), flush=True)
        else:
            continue
        break
    save_draft(draft, args.out)
    lines = "".join(json.dumps(line) + "\n" for line in log)
    (pathlib.Path(args.out) / "training_log.jsonl.gz").write_bytes(gzip.compress(lines.encode(), 9, mtime=0))
    print(f"{step} steps in {time.time() - begun:.0f} s", flush=True)


@torch.no_grad()
def taken(draft, store, device, tokens=None, steps=STEPS):
    """(share of drafts taken at each place of those that got so far, tokens a step, slots). Greedy chains from every slot at which
    the assistant writes; a slot counts for as long as the conversation says what the target would."""
    got, tried, size = np.zeros(steps), np.zeros(steps), 0
    for docs in store.batches(range(len(store.starts)), 2048):
        batch, labels, truth = store.batch(docs, device, steps)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            logits = draft.unroll(batch, steps, "own")
        alive = torch.ones(labels.shape[1], dtype=torch.bool, device=device)
        for i in range(steps):
            alive &= labels[i] >= 0
            right = alive & (draft.ids[logits[i].argmax(-1)] == labels[i])
            got[i] += right.sum().item()
            tried[i] += alive.sum().item()
            alive = right & (truth[i] == labels[i])
        size += len(batch["next"])
        if tokens and size >= tokens:
            break
    shares = got / np.maximum(tried, 1)
    return [round(float(x), 4) for x in shares], round(1 + float(np.cumprod(shares).sum()), 3), int(tried[0])


def measure(args, device):
    target = target_model(device)
    draft = load_draft(args.draft, target.embed_tokens.weight)
    shares, length, slots = taken(draft, Store(pathlib.Path(args.work) / "check"), device)
    print(f"{slots} slots; taken at each place: {shares}; {length} tokens a step of the target")


def round_matrices(args, device):
    """Matrices to fewer bits of mantissa than bf16's 7, to the nearest, ties to even: an archive packs what is left better."""
    target = target_model(device)
    draft = load_draft(args.draft, target.embed_tokens.weight)
    drop = 7 - args.bits
    for name, weight in draft.named_parameters():
        if weight.dim() != 2 or not weight.requires_grad:
            continue
        words = weight.data.to(torch.bfloat16).view(torch.int16).int() & 0xFFFF
        words = (words + (1 << (drop - 1)) - 1 + (words >> drop & 1)) >> drop << drop
        weight.data.copy_(words.to(torch.int16).view(torch.bfloat16))
    save_draft(draft, args.out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", default="/tmp/pocket_draft")
    parser.add_argument("--threads", type=int, default=0, help="of torch on a CPU")
    parts = parser.add_subparsers(dest="part", required=True)
    part = parts.add_parser("features")
    part.add_argument("--minutes", type=float, default=8)
    part.add_argument("--check-minutes", type=float, default=0.6)
    part = parts.add_parser("train")
    kind = part.add_mutually_exclusive_group(required=True)
    kind.add_argument("--type", choices=TYPES, help="of its attention")
    kind.add_argument("--start-from", help="a draft to go on from, with its type, its widths and its vocabulary")
    part.add_argument("--minutes", type=float, default=14)
    part.add_argument("--out", required=True)
    part.add_argument("--seed", type=int, default=1, help="of the order of conversations")
    part.add_argument("--lr", type=float, default=2e-3)
    part.add_argument("--tokens", type=int, default=1024, help="a step")
    part.add_argument("--width", type=int, default=512, help="of the MLP")
    part.add_argument("--vocabulary", type=int, default=1024, help="of the draft")
    part.add_argument("--check-every", type=float, default=90, help="seconds")
    part = parts.add_parser("measure")
    part.add_argument("draft")
    part = parts.add_parser("round")
    part.add_argument("draft")
    part.add_argument("--bits", type=int, default=4, choices=range(1, 7), help="of mantissa")
    part.add_argument("--out", required=True)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    {"features": features, "train": train, "measure": measure, "round": round_matrices}[args.part](args, device)


if __name__ == "__main__":
    main()
