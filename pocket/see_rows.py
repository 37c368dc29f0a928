"""Rows of conversations about pictures, drawn by worker processes, and batches of them for training.

A batch has the same shapes whatever is in it, so that a step can be recorded once and replayed: what is left over of each array is
filled up with documents and pictures that nobody asks about.
"""
import multiprocessing
import os
import pathlib
import pickle
import queue
import random
import shutil
import threading
import time

import numpy as np
import torch

from data import see_mix
from data.render import Renderer
from data.see_draw import marked_patches, patches_of, written_patches
from tokenizer.encoding import Tokenizer

TOKENS, PATCHES, PICTURES, MARKS, WORDS = 4096, 6144, 128, 3072, 768  # of a row of the ring, at most
DOCUMENTS, ASKED = 128, 1024
LONGEST = 1024  # tokens of a conversation
LARGEST = 256  # patches of a picture
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
    renderer, row, documents = Renderer(tokenizer), None, 0
    length_of = lambda token: len(tokenizer.bytes_of[token])  # noqa: E731
    for case in see_mix.stream(rng, only):
        case.messages, canvases = counted(case.messages)
        ids, flags = renderer.training(case)
        cut = [patches_of(canvas.pixels()) for canvas in canvases]
        patches = sum(len(part[0]) for part in cut)
        if len(ids) > min(LONGEST, limit) or patches > min(PATCHES, 4 * limit):
            continue
        if row is not None and (row["tokens"] + len(ids) > limit or row["patches"] + patches > min(PATCHES, 4 * limit) or row["pictures"] + len(cut) > PICTURES or documents == DOCUMENTS):
            done(row)
            row = None
        if row is None:
            row = take()
            for name in ("tokens", "patches", "pictures", "marked", "words_told"):
                row[name] = 0
            documents = 0
        documents += 1
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


def bounds_of(lengths, total, longest, count):
    """int32 [count + 1]: where parts of these lengths begin and end, then parts of at most `longest` up to `total`, then empty ones."""
    out = np.full(count + 1, total, np.int32)
    out[0] = 0
    ends = np.cumsum(lengths, dtype=np.int64)
    out[1:len(ends) + 1] = ends
    rest = np.arange(ends[-1] + longest, total, longest)
    out[len(ends) + 1:len(ends) + 1 + len(rest)] = rest
    return out


class Batch:
    """The arrays of `rows` rows of at most `tokens` tokens, in host memory, and as tensors under the same names (pinned where a GPU reads them)."""

    def __init__(self, rows, tokens, pinned):
        t, p = rows * tokens, rows * min(PATCHES, 4 * tokens)
        types = {"ids": (np.int64, (t,)), "positions": (np.int64, (t,)), "bounds": (np.int32, (rows * (DOCUMENTS + -(-tokens // LONGEST)) + 1,)),
                 "asked": (np.int64, (rows * ASKED,)), "wanted": (np.int64, (rows * ASKED,)), "places_of_rows": (np.int64, (p // 4,)),
                 "pixels": (np.uint8, (p, 588)), "places": (np.uint8, (p, 2)), "grids": (np.uint8, (p, 2)),
                 "picture_bounds": (np.int32, (rows * (PICTURES + PATCHES // LARGEST) + 1,)), "shown": (np.float32, (p, 1)),
                 "marks": (np.int64, (rows * MARKS, 2)), "words": (np.int64, (rows * WORDS, 2))}
        self.rows, self.tensors, self.arrays = rows, {}, {}
        for name, (dtype, shape) in types.items():
            tensor = torch.zeros(shape, dtype=torch.from_numpy(np.zeros(1, dtype)).dtype, pin_memory=pinned)
            self.tensors[name], self.arrays[name] = tensor, tensor.numpy()
        self.read = None  # an event: what was in it has been read

    def fill(self, parts, placeholder):
        """parts: of each row its words, pixels, places, grids, marks and written words."""
        a, t, p = self.arrays, 0, 0
        words_of, grids_of, marks, written = [], [], [(a["marks"], MARKS, "marks"), (a["words"], WORDS, "words")], [0, 0]
        a["marks"][:] = (len(a["pixels"]), 0)  # the place that nobody reads
        a["words"][:] = (0, -100)
        for ids, pixels, places, grids, *pairs in parts:
            a["pixels"][p:p + len(pixels)] = pixels
            a["places"][p:p + len(pixels)] = places
            for i, ((array, _, _), pair) in enumerate(zip(marks, pairs)):
                array[written[i]:written[i] + len(pair)] = pair
                array[written[i]:written[i] + len(pair), 0] += p
                written[i] += len(pair)
            words_of.append(ids)
            grids_of.append(grids)
            t, p = t + len(ids), p + len(pixels)
        row, grids = np.concatenate(words_of), np.concatenate(grids_of)
        a["ids"][:t] = row & 0xFFF
        a["ids"][t:] = 0
        starts = np.flatnonzero(row & START)
        lengths = np.diff(np.append(starts, t))
        a["bounds"][:] = bounds_of(lengths, len(a["ids"]), LONGEST, len(a["bounds"]) - 1)
        a["positions"][:t] = np.arange(t) - np.repeat(starts, lengths)
        a["positions"][t:] = 0
        asked = np.flatnonzero((row[1:] & WRITTEN) * ((row[1:] & START) == 0))[:len(a["asked"])]  # the slot before each token that the assistant writes
        a["asked"][:], a["wanted"][:] = 0, -100
        a["asked"][:len(asked)] = asked
        a["wanted"][:len(asked)] = a["ids"][asked + 1]
        areas = grids[:, 0].astype(np.int64) * grids[:, 1]
        a["picture_bounds"][:] = bounds_of(areas, len(a["pixels"]), LARGEST, len(a["picture_bounds"]) - 1)
        a["grids"][:p] = np.repeat(grids, areas, axis=0)
        a["places_of_rows"][:] = len(a["ids"])  # likewise
        a["places_of_rows"][:p // 4] = np.flatnonzero(a["ids"][:t] == placeholder)
        a["shown"][:p], a["shown"][p:] = 1, 0


class Rows:
    """Draws batches from the ring, ahead of the trainer, in a thread."""

    def __init__(self, args, placeholder, device):
        self.per_step, self.placeholder, self.device, self.share, self.tokens = args.rows, placeholder, device, args.ring, min(args.row_tokens, TOKENS)
        size = args.workers * args.ring * ROW.itemsize
        folder = next((f for f in ("/dev/shm", "/tmp") if os.path.isdir(f) and shutil.disk_usage(f).free > 2 * size), "/tmp")
        self.folder = pathlib.Path(folder) / f"pocket_sees_{os.getpid()}"
        self.folder.mkdir()
        file, self.exam_file = str(self.folder / "ring"), str(self.folder / "exam")
        self.ring = np.memmap(file, dtype=ROW, mode="w+", shape=(args.workers * args.ring,))
        context = multiprocessing.get_context("spawn")
        self.filled = context.Array("l", args.workers, lock=False)
        self.processes = [context.Process(target=work, args=(i, file, args.ring, args.only, self.tokens, self.filled), daemon=True) for i in range(args.workers)]
        self.processes.append(context.Process(target=examine, args=(self.exam_file, args.only, args.exam), daemon=True))
        for p in self.processes:
            p.start()
        self.random = np.random.default_rng()
        self.ready, self.free = queue.Queue(), queue.Queue()
        for _ in range(4):
            self.free.put(Batch(self.per_step, self.tokens, device.type == "cuda"))
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

    def run(self):
        try:
            if self.device.type == "cuda":
                torch.cuda.set_device(self.device)
            while True:
                batch = self.free.get()
                if batch.read is not None:
                    batch.read.synchronize()
                batch.fill([self.pick() for _ in range(self.per_step)], self.placeholder)
                self.ready.put(batch)
        except Exception as error:  # the trainer ends with it, instead of waiting for a batch
            self.ready.put(error)

    def bring(self, to):
        """The next batch into these tensors, which are on the device."""
        batch = self.ready.get()
        if isinstance(batch, Exception):
            raise batch
        for name, tensor in batch.tensors.items():
            to[name].copy_(tensor, non_blocking=True)
        if self.device.type == "cuda":
            batch.read = torch.cuda.Event()
            batch.read.record()
        self.free.put(batch)

    def tensors(self):
        return {name: tensor.to(self.device) for name, tensor in Batch(self.per_step, self.tokens, False).tensors.items()}

    def stop(self):
        for p in self.processes:
            p.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
