#!/usr/bin/env python3
"""Trains the pocket model's vision encoder and projector for a given time; the text model stays as it is.

    python3 pocket/train_vision.py --minutes 3.3 --out DIR

The loss is that of the text model on what the assistant says of pictures, and a small one of a head that is thrown away: which
patches show which letters, shapes and colours, and which tokens of the text model's vocabulary the writing consists of. Worker processes draw pictures and write packed rows of conversations into
rings, from which the trainer takes at random. The learning rate follows the clock; what is there is saved several times and
whatever happens the program ends when the time is over.
"""
import argparse
import json
import math
import multiprocessing
import os
import pathlib
import pickle
import queue
import random
import shutil
import sys
import threading
import time
import traceback

import numpy as np

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import vision  # noqa: E402
from data import see_mix  # noqa: E402
from data.render import Renderer  # noqa: E402
from data.see_draw import CLASSES, marked_patches, patches_of, written_patches  # noqa: E402
from generate import Generator, right  # noqa: E402
from modeling import load, norm  # noqa: E402
from muon import Muon  # noqa: E402
from tokenizer.encoding import Tokenizer  # noqa: E402

TOKENS, PATCHES, PICTURES, MARKS, WORDS = 4096, 8192, 512, 20000, 4096  # of a row of the ring, at most
LONGEST = 1024  # tokens of a conversation
WRITTEN, START = 1 << 14, 1 << 15
ROW = np.dtype([("turn", "i8"), ("tokens", "i4"), ("patches", "i4"), ("pictures", "i4"), ("marked", "i4"), ("words_told", "i4"), ("ids", "u2", (TOKENS,)),
                ("pixels", "u1", (PATCHES, 588)), ("places", "u1", (PATCHES, 2)), ("grids", "u1", (PICTURES, 2)), ("marks", "u2", (MARKS, 2)), ("words", "u2", (WORDS, 2))])


def counted(messages):
    """The messages with the pictures' numbers of tokens in their place, and the pictures in order."""
    out, canvases = [], []
    for message in messages:
        if isinstance(message.get("content"), list):
            parts = []
            for part in message["content"]:
                if part["type"] == "image":
                    canvases.append(part["canvas"])
                    part = {"type": "image", "tokens": part["canvas"].tokens()}
                parts.append(part)
            message = {**message, "content": parts}
        out.append(message)
    return out, canvases


def rows_of(rng, tokenizer, only, limit, take, done):
    """Packs conversations of up to `limit` tokens in all without end. take() gives a row to fill, done(row) says that it is full."""
    renderer, row = Renderer(tokenizer), None
    length_of = lambda token: len(tokenizer.bytes_of[token])  # noqa: E731
    for case in see_mix.stream(rng, only):
        case.messages, canvases = counted(case.messages)
        ids, flags = renderer.training(case)
        cut = [patches_of(canvas.pixels()) for canvas in canvases]
        patches = sum(len(part[0]) for part in cut)
        if len(ids) > min(LONGEST, limit) or patches > PATCHES:
            continue
        if row is not None and (row["tokens"] + len(ids) > limit or row["patches"] + patches > PATCHES or row["pictures"] + len(cut) > PICTURES):
            done(row)
            row = None
        if row is None:
            row = take()
            for name in ("tokens", "patches", "pictures", "marked", "words_told"):
                row[name] = 0
        doc = np.array(ids, dtype=np.uint16) | (np.array(flags, dtype=np.uint16) * WRITTEN)
        doc[0] |= START
        at = int(row["tokens"])
        row["ids"][at:at + len(doc)] = doc
        row["tokens"] += len(doc)
        for canvas, (pixels, places) in zip(canvases, cut):
            at, grid = int(row["patches"]), canvas.grid()
            row["pixels"][at:at + len(pixels)] = pixels
            row["places"][at:at + len(pixels)] = places
            row["grids"][row["pictures"]] = grid
            marks = marked_patches(canvas.marks, *grid)
            words = written_patches(canvas.writing, tokenizer.encode, length_of, *grid)
            for told, name, pairs, room in (("marked", "marks", sorted(marks), MARKS), ("words_told", "words", words, WORDS)):
                n = int(row[told])
                count = min(len(pairs), room - n)
                if count:
                    row[name][n:n + count] = (np.array(pairs) + (at, 0))[:count]
                row[told] += count
            row["patches"] += len(pixels)
            row["pictures"] += 1


def work(index, file, share, only, limit, filled):
    """One worker: fills its own slice of the ring, round and round. A row's turn is odd while it is written."""
    os.nice(5)
    torch.set_num_threads(1)
    ring = np.memmap(file, dtype=ROW, mode="r+", offset=index * share * ROW.itemsize, shape=(share,))
    written = 0

    def take():
        ring[written % share]["turn"] += 1
        return ring[written % share]

    def done(row):
        nonlocal written
        row["turn"] += 1
        written += 1
        filled[index] = written

    rows_of(random.Random(f"pocket sees {index} {time.time_ns()}"), Tokenizer(), only, limit, take, done)


def examine(file, only, count):
    """Writes held-out questions: (task, tier, prompt's ids, answer, pictures)."""
    os.nice(5)
    rng, renderer, out = random.Random("pocket sees held out"), Renderer(Tokenizer()), []
    for i in range(count):
        for task in [only] if only else see_mix.TASKS:
            for hard in (0, 1):
                case = see_mix.question(rng, task, hard)
                messages, canvases = counted(case.messages)
                out.append((task, case.tier, renderer.prompt(messages[:-1], None, False), case.expect, [c.pixels().copy() for c in canvases]))
    pathlib.Path(file + ".new").write_bytes(pickle.dumps(out))
    os.rename(file + ".new", file)


class Rows:
    """Draws batches from the ring, ahead of the trainer, in a thread."""

    def __init__(self, args, placeholder, device):
        self.per_step, self.placeholder, self.device, self.share = args.rows, placeholder, device, args.ring
        size = args.workers * args.ring * ROW.itemsize
        folder = next((f for f in ("/dev/shm", "/tmp") if os.path.isdir(f) and shutil.disk_usage(f).free > 2 * size), "/tmp")
        self.folder = pathlib.Path(folder) / f"pocket_sees_{os.getpid()}"
        self.folder.mkdir()
        file, self.exam_file = str(self.folder / "ring"), str(self.folder / "exam")
        self.ring = np.memmap(file, dtype=ROW, mode="w+", shape=(args.workers * args.ring,))
        context = multiprocessing.get_context("spawn")
        self.filled = context.Array("l", args.workers, lock=False)
        self.processes = [context.Process(target=work, args=(i, file, args.ring, args.only, args.row_tokens, self.filled), daemon=True) for i in range(args.workers)]
        self.processes.append(context.Process(target=examine, args=(self.exam_file, args.only, args.exam), daemon=True))
        for p in self.processes:
            p.start()
        self.random = np.random.default_rng()
        self.ready = queue.Queue(maxsize=3)
        self.thread = threading.Thread(target=self.run, daemon=True)

    def wait(self, least):
        while sum(min(n, self.share) for n in self.filled) < least:
            if not any(p.is_alive() for p in self.processes[:-1]):
                raise RuntimeError("the data workers ended")
            time.sleep(0.1)
        self.thread.start()

    def pick(self):
        while True:
            w = int(self.random.integers(len(self.filled)))
            n = min(self.filled[w], self.share)
            if not n:
                continue
            row = self.ring[w * self.share + int(self.random.integers(n))]
            turn, t, p = int(row["turn"]), int(row["tokens"]), int(row["patches"])
            out = [row["ids"][:t].copy(), row["pixels"][:p].copy(), row["places"][:p].copy(), row["grids"][:row["pictures"]].copy(), row["marks"][:row["marked"]].astype(np.int64), row["words"][:row["words_told"]].astype(np.int64)]
            whole = int(row["turn"]) == turn and turn % 2 == 0
            ids, grids = out[0], out[3].astype(np.int64)
            if whole and 4 * int((ids & 0xFFF == self.placeholder).sum()) == p == int((grids[:, 0] * grids[:, 1]).sum()) and (ids[0] & START):
                return out

    def batch(self):
        parts = [self.pick() for _ in range(self.per_step)]
        row, pixels, places, grids = (np.concatenate([part[i] for part in parts]) for i in range(4))
        starts_of = np.cumsum([0] + [len(part[1]) for part in parts])
        marks, words = (np.concatenate([part[i] + (first, 0) for part, first in zip(parts, starts_of)]) for i in (4, 5))
        ids = (row & 0xFFF).astype(np.int64)
        starts = np.flatnonzero(row & START)
        bounds = np.append(starts, len(row)).astype(np.int32)
        lengths = np.diff(bounds)
        positions = np.arange(len(row)) - np.repeat(starts, lengths)
        asked = np.flatnonzero((row[1:] & WRITTEN) * ((row[1:] & START) == 0))  # the slot before each token that the assistant writes
        areas = grids[:, 0].astype(np.int64) * grids[:, 1]
        picture_bounds = np.append(0, np.cumsum(areas)).astype(np.int32)
        arrays = (ids, positions, bounds, asked, ids[asked + 1], np.flatnonzero(ids == self.placeholder), pixels, places, np.repeat(grids, areas, axis=0), picture_bounds, marks, words)
        tensors = [torch.from_numpy(a) for a in arrays]
        if self.device.type == "cuda":
            tensors = [t.pin_memory().to(self.device, non_blocking=True) for t in tensors]
        return (*tensors, int(lengths.max()), int(areas.max()))

    def run(self):
        try:
            if self.device.type == "cuda":
                torch.cuda.set_device(self.device)
            while True:
                self.ready.put(self.batch())
        except Exception as error:  # the trainer ends with it, instead of waiting for a batch
            self.ready.put(error)

    def next(self):
        batch = self.ready.get()
        if isinstance(batch, Exception):
            raise batch
        return batch

    def stop(self):
        for p in self.processes:
            p.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class Trainer(nn.Module):
    def __init__(self, model, sight):
        super().__init__()
        self.sight, self.marks = sight, nn.Linear(sight.v["vt_hidden_size"], len(CLASSES))
        nn.init.constant_(self.marks.bias, -4.0)
        self.words = nn.Linear(sight.v["vt_hidden_size"], model.c["vocab_size"])
        self.frozen = [model]  # no parameters of this module

    def forward(self, batch):
        """(mean loss of the assistant's tokens, mean loss of the marks a patch, mean loss of the words' tokens)"""
        ids, positions, bounds, asked, wanted, places_of_rows, pixels, places, grids, picture_bounds, marks, words, longest, most = batch
        model = self.frozen[0]
        features = self.sight.features(pixels, places, grids, picture_bounds, most)
        rows = self.sight.rows(features)
        x = model.embed_tokens(ids).float().index_put((places_of_rows,), rows.float())
        cos, sin = model.angles(positions)
        for layer in model.layers:
            x, _ = layer(x, cos, sin, bounds, longest)
        x = norm(x[asked], model.norm, model.c["rms_norm_eps"])
        logits = model.lm_head(x.to(torch.bfloat16) if x.is_cuda else x)
        said = F.cross_entropy(logits.float(), wanted)
        shown = self.marks(features).float()
        target = torch.zeros_like(shown)
        target[marks[:, 0], marks[:, 1]] = 1.0
        shown = F.binary_cross_entropy_with_logits(shown, target, reduction="sum") / shown.shape[0]
        if not len(words):
            return said, shown, torch.zeros_like(shown)
        return said, shown, F.cross_entropy(self.words(features[words[:, 0]]).float(), words[:, 1])


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
    parser.add_argument("--row-tokens", type=int, default=TOKENS, help="tokens of a row, at most")
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
        batch = rows.next()
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=cuda):
            said, shown, read = trainer(batch)
        (said + max(0.1, 1 - 1.5 * progress) * (args.marks * shown + args.words * read)).backward()
        torch.nn.utils.clip_grad_norm_([p for _, p in parameters], 1.0, foreach=True)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        step += 1
        seen += batch[0].numel()
        losses.append((said.detach(), shown.detach(), read.detach()))
        if len(losses) >= (100 if cuda else 10) or step == 2:
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
