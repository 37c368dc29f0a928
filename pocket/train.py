#!/usr/bin/env python3
"""Trains the pocket model for a given time.

    torchrun --nproc-per-node 4 pocket/train.py --minutes 15 --out DIR

Worker processes write packed rows of tokens into ring files; every rank draws rows from its own ring. A row holds whole
conversations, and none sees another. A word of a row: bits 0-11 the token, bit 14 "the assistant writes this", bit 15 "a
conversation starts here". Rows with long conversations are kept apart, because attention costs by the longest one.
The learning rate follows the clock, so the run ends well when the time is over. Only rank 0 writes.
"""
import argparse
import datetime
import gzip
import json
import math
import multiprocessing
import os
import pathlib
import queue
import random
import shutil
import sys
import threading
import time

import numpy as np
import torch
import torch.distributed as dist

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from data import mix  # noqa: E402
from data.render import Renderer  # noqa: E402
from modeling import PocketModel, load, load_config, save  # noqa: E402
from tokenizer.encoding import Tokenizer  # noqa: E402

ROW = 8192
WRITTEN, START = 1 << 14, 1 << 15
KINDS = {"short": 1024, "long": ROW}  # longest conversation in such a row


def rows_of(rng, tokenizer, put):
    """Packs conversations without end; calls put(kind, row)."""
    renderer = Renderer(tokenizer)
    pad = tokenizer.special["[PAD]"]
    waiting = {kind: [] for kind in KINDS}
    for case in mix.stream(rng):
        ids, flags = renderer.training(case)
        if len(ids) > ROW:
            continue
        doc = np.array(ids, dtype=np.uint16) | (np.array(flags, dtype=np.uint16) * WRITTEN)
        doc[0] |= START
        kind = "short" if len(ids) <= KINDS["short"] else "long"
        pool = waiting[kind]
        pool.append(doc)
        if sum(map(len, pool)) < (3 if kind == "long" else 1.2) * ROW:
            continue
        row, used, left = np.full(ROW, pad, dtype=np.uint16), 0, []
        for d in (sorted(pool, key=len, reverse=True) if kind == "long" and rng.random() < 0.5 else pool):
            if used + len(d) <= ROW:
                row[used:used + len(d)] = d
                used += len(d)
            else:
                left.append(d)
        if used < ROW:
            row[used] |= START
        waiting[kind] = left
        put(kind, row)


def work(rank, index, count, folder, capacity, filled, tokens):
    """One worker: fills its own slice of the rank's rings, round and round."""
    os.nice(5)
    torch.set_num_threads(1)
    rng = random.Random(f"pocket {rank} {index}")
    share = {kind: capacity[kind] // count for kind in KINDS}
    rings = {kind: np.memmap(f"{folder}/{rank}.{kind}", dtype=np.uint16, mode="r+", shape=(capacity[kind], ROW)) for kind in KINDS}
    written = {kind: 0 for kind in KINDS}

    def put(kind, row):
        rings[kind][index * share[kind] + written[kind] % share[kind]] = row
        written[kind] += 1
        filled[list(KINDS).index(kind) * count + index] = min(written[kind], share[kind])
        tokens[index] += ROW

    rows_of(rng, Tokenizer(), put)


class Rows:
    """Draws batches from the rings, ahead of the trainer, in a thread."""

    def __init__(self, rank, workers, folder, per_step, long_share, world, device):
        self.rank, self.workers, self.per_step, self.device, self.world = rank, workers, per_step, device, world
        self.long_share = long_share
        capacity = {"short": 160 * workers, "long": 160 * workers}
        self.share = {kind: capacity[kind] // workers for kind in KINDS}
        self.rings = {kind: np.memmap(f"{folder}/{rank}.{kind}", dtype=np.uint16, mode="w+", shape=(capacity[kind], ROW)) for kind in KINDS}
        context = multiprocessing.get_context("spawn")
        self.filled = context.Array("l", workers * len(KINDS), lock=False)
        self.tokens = context.Array("l", workers, lock=False)
        self.processes = [context.Process(target=work, args=(rank, i, workers, folder, capacity, self.filled, self.tokens), daemon=True)
                          for i in range(workers)]
        for p in self.processes:
            p.start()
        self.random = np.random.default_rng(rank)
        self.ready = queue.Queue(maxsize=4)
        self.thread = threading.Thread(target=self.run, daemon=True)

    def wait(self, least):
        while any(sum(self.filled[k * self.workers:(k + 1) * self.workers]) < least for k in range(len(KINDS))):
            if not all(p.is_alive() for p in self.processes):
                raise RuntimeError("a data worker ended")
            time.sleep(0.2)
        self.thread.start()

    def pick(self, kind):
        at = list(KINDS).index(kind) * self.workers
        out = []
        while len(out) < self.per_step:
            w = int(self.random.integers(self.workers))
            n = self.filled[at + w]
            if n:
                out.append(self.rings[kind][w * self.share[kind] + int(self.random.integers(n))])
        return np.concatenate(out)

    def batch(self, step):
        # Ranks take turns at the long rows, so that each step of the whole group sees both kinds.
        turn = (step * self.world + self.rank) * self.long_share
        kind = "long" if math.floor(turn + self.long_share) > math.floor(turn) else "short"
        row = self.pick(kind)
        ids = (row & 0xFFF).astype(np.int64)
        starts = np.flatnonzero(row & START)
        if starts[0] != 0:
            starts = np.concatenate(([0], starts))
        lengths = np.diff(np.append(starts, len(row)))
        positions = np.arange(len(row)) - np.repeat(starts, lengths)
        wanted = ((row & WRITTEN) != 0) & ((row & START) == 0)
        targets = np.full(len(row), -100, dtype=np.int64)
        targets[:-1][wanted[1:]] = ids[1:][wanted[1:]]
        bounds = np.append(starts, len(row)).astype(np.int32)
        longest = int(-(-lengths.max() // KINDS["short"]) * KINDS["short"])
        tensors = [torch.from_numpy(a) for a in (ids, positions, targets, bounds)]
        if self.device.type == "cuda":
            tensors = [t.pin_memory().to(self.device, non_blocking=True) for t in tensors]
        return (*tensors, min(longest, ROW))

    def run(self):
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        step = 0
        while True:
            self.ready.put(self.batch(step))
            step += 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--out", default="/tmp/pocket_out")
    parser.add_argument("--work", default="/dev/shm/pocket_rows" if os.path.isdir("/dev/shm") else "/tmp/pocket_rows")
    parser.add_argument("--rows", type=int, default=6, help="rows of 8192 tokens a step and rank")
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--lr", type=float, default=2.5e-3)
    parser.add_argument("--decay", type=float, default=0.05)
    parser.add_argument("--long-share", type=float, default=0.3)
    parser.add_argument("--balance", type=float, default=2e-3, help="step of the experts' correction bias")
    parser.add_argument("--save-every", type=float, default=90, help="seconds")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--start-from", help="an exported model to go on from (its bfloat16 values)")
    parser.add_argument("--max-steps", type=int, default=0)
    args = parser.parse_args()

    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if cuda else torch.device("cpu")
    folder = pathlib.Path(args.work)
    folder.mkdir(parents=True, exist_ok=True)
    rows = Rows(rank, args.workers, str(folder), args.rows, args.long_share, world, device)  # before CUDA starts
    if cuda:
        torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_tf32 = True
    if world > 1:
        dist.init_process_group("nccl" if cuda else "gloo", timeout=datetime.timedelta(minutes=10), **({"device_id": device} if cuda else {}))

    torch.manual_seed(1)
    config = load_config()
    model = load(args.start_from, device).train() if args.start_from else PocketModel(config).to(device)
    parameters = [p for p in model.parameters()]
    biases = [layer.mlp.e_score_correction_bias for layer in model.layers if not layer.dense]
    experts = len(biases) * config["n_routed_experts"]
    flat = torch.zeros(sum(p.numel() for p in parameters) + 2 + experts, device=device)  # gradients, then loss, count, use of experts
    at = 0
    for p in parameters:
        p.grad = flat[at:at + p.numel()].view_as(p)
        at += p.numel()
    optimizer = torch.optim.AdamW([{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": args.decay},
                                   {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}],
                                  lr=args.lr, betas=(0.9, 0.97), eps=1e-9, fused=cuda)
    run = model if args.no_compile else torch.compile(model)
    rows.wait(args.rows * 8)

    out = pathlib.Path(args.out)
    log, last_save = [], time.time()
    started = time.time()
    begun, step, seen = None, 0, 0
    last = (time.time(), 0, 0.0, 0.0)
    recent_loss = recent_count = 0.0
    while True:
        now = time.time()
        if begun is None and step >= 12:
            begun = now  # compiled and warm: the clock starts
        progress = 0.0 if begun is None else min(1.0, (now - begun) / (60 * args.minutes - (begun - started)))
        if world > 1 and step % 10 == 0:
            shared = torch.tensor([progress], device=device)
            dist.broadcast(shared, 0)
            agreed = float(shared)
        elif world == 1:
            agreed = progress
        if agreed >= 1.0 or (args.max_steps and step >= args.max_steps):
            break
        warm = min(1.0, (step + 1) / 300)
        rate = args.lr * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * agreed)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        ids, positions, targets, bounds, longest = rows.ready.get()
        flat.zero_()
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=cuda):
            loss, used = run(ids, positions, targets, bounds, longest)
        loss.backward()
        flat[at] = loss.detach()
        flat[at + 1] = (targets >= 0).sum()
        flat[at + 2:] = used.flatten()
        if world > 1:
            dist.all_reduce(flat)
        gradients = flat[:at]
        gradients.div_(flat[at + 1].clamp(min=1))
        gradients.mul_((1.0 / (gradients.norm() + 1e-6)).clamp(max=1.0))
        optimizer.step()
        with torch.no_grad():
            for bias, counts in zip(biases, flat[at + 2:].view(len(biases), -1)):
                bias.add_(torch.sign(counts.mean() - counts) * args.balance * (rate / args.lr))
        step += 1
        seen += ids.numel() * world
        if step % 100 == 0 or step in (2, 12, 30):
            total, count = float(flat[at]), float(flat[at + 1])
            use = flat[at + 2:].view(len(biases), -1)
            spread = float((use.max(1)[0] / use.mean(1)).max())
            t = time.time()
            speed = (seen - last[1]) / (t - last[0])
            last = (t, seen)
            if rank == 0:
                made = sum(rows.tokens) * world
                line = dict(step=step, seconds=round(t - started), progress=round(agreed, 3), loss=round(total / max(count, 1), 4), rate=round(rate, 6),
                            tokens=seen, made=made, per_second=round(speed), busiest_expert=round(spread, 2),
                            memory_gb=round(torch.cuda.max_memory_allocated() / 1e9, 1) if cuda else 0)
                log.append(line)
                print(json.dumps(line), flush=True)
        if rank == 0 and time.time() - last_save > args.save_every:
            write(model, out, log)
            last_save = time.time()
    if rank == 0:
        write(model, out, log)
        (out / "finished").write_text("yes\n")
        print(f"{step} steps, {seen} tokens, {time.time() - started:.0f} s", flush=True)
    for p in rows.processes:
        p.terminate()
    if world > 1:
        dist.barrier()
    os._exit(0)


def write(model, out, log):
    fresh = out.with_name(out.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    save(model, fresh)
    for file in pathlib.Path(__file__).resolve().parent.joinpath("model").glob("*"):
        if file.suffix != ".safetensors" and "index" not in file.name:
            shutil.copy(file, fresh)
    lines = "".join(json.dumps(line) + "\n" for line in log)
    (fresh / "training_log.jsonl.gz").write_bytes(gzip.compress(lines.encode(), 9, mtime=0))
    shutil.rmtree(out, ignore_errors=True)
    fresh.rename(out)


if __name__ == "__main__":
    main()
