#!/usr/bin/env python3
"""Trains the pocket model's vision encoder and projector for a given time; the text model stays as it is.

    python3 pocket/train_vision.py --minutes 3.3 --out DIR

The loss is that of the text model on what the assistant says of pictures, and a small one of heads that are thrown away: which
patches show which letters, shapes and colours, and which tokens of the text model's vocabulary the writing consists of. Worker
processes draw pictures and write packed rows of conversations into rings (see_rows.py), from which the trainer takes at random. On a
GPU forward and backward pass are recorded once and replayed. The learning rate follows the clock; what is there is saved several
times and whatever happens the program ends when the time is over.
"""
import argparse
import json
import math
import os
import pathlib
import pickle
import random
import sys
import threading
import time
import traceback

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import vision  # noqa: E402
from data.see_draw import CLASSES  # noqa: E402
from generate import Generator, right  # noqa: E402
from modeling import load, norm  # noqa: E402
from muon import Muon  # noqa: E402
from see_rows import LARGEST, LONGEST, Rows  # noqa: E402
from tokenizer.encoding import Tokenizer  # noqa: E402

class Trainer(nn.Module):
    def __init__(self, model, sight):
        super().__init__()
        self.sight, self.marks = sight, nn.Linear(sight.v["vt_hidden_size"], len(CLASSES))
        nn.init.constant_(self.marks.bias, -4.0)
        self.words = nn.Linear(sight.v["vt_hidden_size"], model.c["vocab_size"])
        self.frozen = [model]  # no parameters of this module

    def forward(self, batch):
        """(mean loss of the assistant's tokens, mean loss of the marks a patch, mean loss of the words' tokens); batch: tensors of a see_rows.Batch."""
        b, model = batch, self.frozen[0]
        features = self.sight.features(b["pixels"], b["places"], b["grids"], b["picture_bounds"], LARGEST)
        rows = self.sight.rows(features)
        x = model.embed_tokens(b["ids"]).float()
        x = torch.cat((x, x[:1])).index_put((b["places_of_rows"],), rows.float())[:-1]  # the last row is nobody's
        cos, sin = model.angles(b["positions"])
        for layer in model.layers:
            x, _ = layer(x, cos, sin, b["bounds"], LONGEST)
        x = norm(x.index_select(0, b["asked"]), model.norm, model.c["rms_norm_eps"])
        logits = model.lm_head(x.to(torch.bfloat16) if x.is_cuda else x)
        said = F.cross_entropy(logits.float(), b["wanted"])
        shown = self.marks(features).float()
        marks = b["marks"]
        target = shown.new_zeros(shown.shape[0] + 1, shown.shape[1]).index_put((marks[:, 0], marks[:, 1]), shown.new_ones(()))[:-1]
        shown = (F.binary_cross_entropy_with_logits(shown, target, reduction="none") * b["shown"]).sum() / b["shown"].sum()
        words = b["words"]
        told = F.cross_entropy(self.words(features.index_select(0, words[:, 0])).float(), words[:, 1], reduction="sum")
        return said, shown, told / (words[:, 1] >= 0).sum().clamp(min=1)


class Step:
    """Losses and gradients of the next batch; on a GPU a recorded graph."""

    def __init__(self, trainer, rows, args, device):
        self.trainer, self.rows, self.args, self.device = trainer, rows, args, device
        self.batch, self.share, self.graph = rows.tensors(), torch.ones((), device=device), None
        self.parameters = list(trainer.parameters())

    def run(self):
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.device.type == "cuda", cache_enabled=False):
            self.losses = self.trainer(self.batch)
            said, shown, read = self.losses
            total = said + self.share * (self.args.marks * shown + self.args.words * read)
        total.backward()

    def record(self):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.rows.bring(self.batch)
                self.clear()
                self.run()
        torch.cuda.current_stream().wait_stream(stream)
        self.clear()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.run()
        self.graph = graph

    def clear(self):
        for p in self.parameters:
            p.grad = None

    def next(self, share):
        """share: of the heads' losses."""
        self.rows.bring(self.batch)
        self.share.fill_(share)
        if self.graph is not None:
            self.graph.replay()
            return self.losses
        self.clear()
        self.run()
        return self.losses


class Exam:
    def __init__(self, file, model, sight, tokenizer, device):
        self.file, self.sight, self.tokenizer, self.device = file, sight, tokenizer, device
        self.generator = Generator(model, tokenizer.special["<|im_end|>"])
        self.questions = None

    def mark(self, until, failures=0):
        """Share of right answers per task and tier, or None as long as there are no questions. Training goes on without it."""
        try:
            return self.ask(until, failures)
        except Exception:
            traceback.print_exc()
            return None

    @torch.no_grad()
    def ask(self, until, failures):
        if self.questions is None:
            if not os.path.exists(self.file):
                return None
            self.questions = pickle.loads(pathlib.Path(self.file).read_bytes())
        good, asked, wrong = {}, {}, []
        for first in range(0, len(self.questions), 128):
            part = self.questions[first:first + 128]
            if time.time() > until:
                break
            rows = self.sight(*vision.pack([p for line in part for p in line[4]], self.device))
            said = self.generator.batch([line[2] for line in part], [56] * len(part), (self.tokenizer.special["<|media_pad|>"], rows))
            for (task, tier, _, expect, _), ids in zip(part, said):
                content = self.tokenizer.decode(ids, specials=True).strip()
                fine = right(expect, content, [])
                good[f"{task} {tier}"] = good.get(f"{task} {tier}", 0) + fine
                asked[f"{task} {tier}"] = asked.get(f"{task} {tier}", 0) + 1
                if not fine:
                    wrong.append(f"{task} {tier}: wanted {expect['text']!r}, said {content!r}")
        for line in random.Random(1).sample(wrong, min(failures, len(wrong))):
            print(line, flush=True)
        return {key: round(good[key] / n, 3) for key, n in sorted(asked.items())}


def check_attention(device):
    """The packed attention and its gradient against each picture alone."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(96, 2, 72, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    bounds = torch.tensor([0, 16, 96], dtype=torch.int32, device=device)
    got = vision.attend(q, k, v, bounds, 80)
    got.float().square().sum().backward()
    fast = [got.detach().float(), q.grad.float(), k.grad.float(), v.grad.float()]
    exact = [t.detach().float().requires_grad_() for t in (q, k, v)]
    want = vision.attend(*exact, bounds, 80)
    want.square().sum().backward()
    slow = [want.detach(), *(t.grad for t in exact)]
    return max(float((a - b).norm() / b.norm()) for a, b in zip(fast, slow))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=3.3, help="of the whole run")
    parser.add_argument("--out", default="/tmp/pocket_sees")
    parser.add_argument("--model", help="the text model (default: pocket/model)")
    parser.add_argument("--rows", type=int, default=6, help="rows a step")
    parser.add_argument("--row-tokens", type=int, default=4096, help="tokens of a row, at most")
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--ring", type=int, default=40, help="rows of a worker that are kept")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--muon", type=float, default=0.02, help="rate of Muon, for the matrices of the blocks; 0: AdamW for them as well")
    parser.add_argument("--decay", type=float, default=0.02)
    parser.add_argument("--warm", type=int, default=200, help="steps")
    parser.add_argument("--marks", type=float, default=0.5, help="weight of the loss of the marks, at first")
    parser.add_argument("--words", type=float, default=0.3, help="weight of the loss of the words' tokens, at first")
    parser.add_argument("--spread", type=float, default=0.2, help="of the projector's rows, at first")
    parser.add_argument("--report", type=float, default=40, help="seconds between reports with answers")
    parser.add_argument("--exam", type=int, default=48, help="held-out questions of each task and tier")
    parser.add_argument("--only", help="one task")
    parser.add_argument("--plain", action="store_true", help="record no graph")
    parser.add_argument("--start-from", help="a folder that this program wrote")
    args = parser.parse_args()
    started = time.time()
    end = started + 60 * args.minutes
    last_step = end - min(20, 0.15 * 60 * args.minutes)  # then saving and the last questions
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", 0) if cuda else torch.device("cpu")
    tokenizer = Tokenizer()
    rows = Rows(args, tokenizer.special["<|media_pad|>"], device)
    guard = threading.Timer(max(1.0, end - time.time() - 1), lambda: (rows.stop(), os._exit(3)))
    guard.daemon = True
    guard.start()
    torch.manual_seed(1)
    if cuda:
        torch.backends.cuda.matmul.allow_tf32 = True
    model = load(args.model or pathlib.Path(__file__).resolve().parent / "model", device)
    for p in model.parameters():  # these values are of bf16
        p.requires_grad_(False)
        if cuda:
            p.data = p.data.bfloat16()
    sight = vision.Sight()
    sight.initialise(args.spread)
    if args.start_from:
        sight = vision.load_sight(args.start_from).train()
    trainer = Trainer(model, sight).to(device)
    if cuda:
        error = check_attention(device)
        print(f"packed attention of heads of 72: relative error {error:.4f}, after {time.time() - started:.0f} s", flush=True)
        if not error < 0.03:
            vision.PAD_HEADS = 128
            print(f"heads filled up to 128: {check_attention(device):.4f}", flush=True)
    parameters = list(trainer.named_parameters())
    matrices = [p for n, p in parameters if args.muon and ".blocks." in n and p.dim() == 2]
    others = [p for _, p in parameters if not any(p is m for m in matrices)]
    optimizers = [torch.optim.AdamW([{"params": [p for p in others if p.dim() >= 2], "weight_decay": args.decay},
                                     {"params": [p for p in others if p.dim() < 2], "weight_decay": 0.0}], lr=args.lr, betas=(0.9, 0.97), eps=1e-9, fused=cuda)]
    if matrices:
        optimizers.append(Muon(matrices, args.muon, weight_decay=args.decay))
    groups = [(group, group["lr"]) for optimizer in optimizers for group in optimizer.param_groups]
    exam = Exam(rows.exam_file, model, sight, tokenizer, device)
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    rows.wait(2 * args.rows)
    step_of = Step(trainer, rows, args, device)
    if cuda and not args.plain:
        step_of.record()
    begun = time.time()
    print(f"first rows after {begun - started:.0f} s", flush=True)
    log, step, seen = [], 0, 0
    last = (begun, 0, 0)
    last_report = begun
    losses = []

    def write():
        vision.save_sight(sight, out / (vision.SHARD + ".new"))
        os.rename(out / (vision.SHARD + ".new"), out / vision.SHARD)
        (out / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))

    while time.time() < last_step:
        progress = min(1.0, (time.time() - begun) / (last_step - begun))
        rate = min(1.0, (step + 1) / args.warm) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))
        for group, highest in groups:
            group["lr"] = highest * rate
        said, shown, read = step_of.next(max(0.1, 1 - 1.5 * progress))
        torch.nn.utils.clip_grad_norm_([p for _, p in parameters], 1.0, foreach=True)
        for optimizer in optimizers:
            optimizer.step()
        step += 1
        seen += args.rows * args.row_tokens
        losses.append([loss.detach().clone() for loss in (said, shown, read)])
        if len(losses) >= (200 if cuda else 10) or step == 2:
            said, shown, read = (float(torch.stack(part).mean()) for part in zip(*losses))
            losses = []
            now = time.time()
            line = dict(step=step, seconds=round(now - started), loss=round(said, 4), marks=round(shown, 4), words=round(read, 4), rate=round(rate, 4), tokens=seen,
                        rows_made=sum(rows.filled), per_second=round((seen - last[1]) / (now - last[0])), memory_gb=round(torch.cuda.max_memory_allocated() / 1e9, 1) if cuda else 0)
            last = (now, seen)
            log.append(line)
            print(json.dumps(line), flush=True)
            if not math.isfinite(said):
                raise SystemExit("the loss is no number")
        if time.time() - last_report > args.report:
            last_report = time.time()
            write()
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=cuda):
                marks = exam.mark(last_step)
            if marks:
                log.append(dict(step=step, seconds=round(time.time() - started), right=marks))
                print(json.dumps(log[-1]), f"({time.time() - last_report:.1f} s)", flush=True)
    write()
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=cuda):
        marks = exam.mark(end - 4, failures=40)
    log.append(dict(step=step, seconds=round(time.time() - started), right=marks, finished=True))
    print(json.dumps(log[-1]), flush=True)
    write()
    print(f"{step} steps, {seen} tokens, {time.time() - started:.0f} s", flush=True)
    rows.stop()
    os._exit(0)


if __name__ == "__main__":
    main()
