"""Rows F14, F15 and F19: disks that are full, checkpoints that are broken, memory that is not there."""
import asyncio
import json
import mmap
import os
import pathlib
import random
import re
import resource
import shutil
import struct
import subprocess
import tempfile
import time

from harness import POCKET, PROGRAM, ROOT, Canary, Idle, Server, call, row, wait_for
from streams import closed_loop, small


@row("F14", "the log's disk is full (tmpfs of 1 MiB), /dev/full, or read-only; caches there too")
def full_disk(row):
    seconds = row.scale(30, 5)
    mount = ('mount -t tmpfs -o size=1m none "$0" && cd "$0" && mkdir cache && exec 3>>log && {act} && '
             'export TMPDIR="$0/cache" XDG_CACHE_HOME="$0/cache" HOME="$0/cache" && exec "$@" 2>&3')
    with tempfile.TemporaryDirectory() as folder:
        cases = {"full": mount.format(act="true"), "full from the start": mount.format(act="{ dd if=/dev/zero of=fill bs=4k 2>/dev/null || true; }"),
                 "read-only": mount.format(act='mount -o remount,ro none "$0" 2>/dev/null || true')}
        for name, script in cases.items():
            with Server("--enable-log-requests", stand_in=2, prefix=["unshare", "-m", "sh", "-c", script, folder]) as server:
                canary, idle = Canary(server), Idle(server)
                tally = asyncio.run(closed_loop(server.port, 32, seconds, small, patience=15))
                if name == "full":
                    # Request lines fill a megabyte after some thousand requests; the rest is filled from outside.
                    root = pathlib.Path(f"/proc/{server.pid()}/root{folder}")
                    subprocess.run(["dd", "if=/dev/zero", f"of={root}/fill", "bs=4k"], stderr=subprocess.DEVNULL)
                    tally = asyncio.run(closed_loop(server.port, 32, seconds, small, tally=tally, patience=15))
                    room = os.statvfs(root)
                    row.check(room.f_bavail == 0, "the disk is not full")
                row.figure(f"{name}:", f"{tally.whole} of {tally.requests} requests")
                row.check(tally.whole == tally.requests, f"{name}: requests failed: {tally.odd}")
                row.check(canary.ok(server), f"{name}: the canary")
                idle.check(row, server)
        with open("/dev/full", "w") as full:
            with Server("--enable-log-requests", stand_in=2, stderr=full) as server:
                canary = Canary(server)
                tally = asyncio.run(closed_loop(server.port, 32, seconds, small, patience=15))
                row.figure("/dev/full:", f"{tally.whole} of {tally.requests} requests")
                row.check(tally.whole == tally.requests, f"/dev/full: requests failed: {tally.odd}")
                row.check(canary.ok(server), "/dev/full: the canary")
        # A reader that has stopped reading: the pipe is full after 64 KiB.
        reader, writer = os.pipe()
        try:
            with Server("--enable-log-requests", stand_in=2, stderr=writer) as server:
                canary = Canary(server)
                tally = asyncio.run(closed_loop(server.port, 32, seconds, small, patience=15))
                row.figure("a pipe that nobody reads:", f"{tally.whole} of {tally.requests} requests")
                row.check(tally.whole == tally.requests and tally.requests > 500, f"unread pipe: {tally.whole} of {tally.requests}: {tally.odd}")
                alive = server.health(2) == 200
                row.check(alive and canary.ok(server), "unread pipe: the canary")
                dropped = sum(value for name, value in server.metrics().items() if "log" in name and "dropped" in name) if alive else 0
                row.figure("lines dropped and counted", f"{dropped:.0f}")
                row.check(dropped > 0, "unread pipe: no metric counts the lines that are dropped")
        finally:
            os.close(reader)
            os.close(writer)


class Checkpoint:
    """A copy of the pocket model of which one file is changed at a time."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        for path in pathlib.Path(POCKET).iterdir():
            shutil.copy(path, self.folder / path.name)
        self.shards = sorted(path.name for path in self.folder.glob("*.safetensors"))
        self.good = {name: (self.folder / name).read_bytes() for name in [*self.shards, "model.safetensors.index.json"]}

    def header(self, shard, data=None):
        data = self.good[shard] if data is None else data
        length = struct.unpack("<Q", data[:8])[0]
        return 8 + length, json.loads(data[8:8 + length])

    def put(self, name, data):
        if data is None:
            (self.folder / name).unlink()
        else:
            (self.folder / name).write_bytes(data)

    def restore(self):
        for name, data in self.good.items():
            path = self.folder / name
            if not path.exists() or path.stat().st_size != len(data) or path.read_bytes() != data:
                path.write_bytes(data)


def run_limited(command, memory=None, seconds=20):
    """(exit code, output, seconds) of a command that may have so many bytes of memory of its own."""
    def limit():
        if memory:
            resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    begun = time.monotonic()
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=seconds, preexec_fn=limit)
        return done.returncode, done.stdout, time.monotonic() - begun
    except subprocess.TimeoutExpired:
        return None, f"it ran longer than {seconds} s", time.monotonic() - begun


def same_meaning(before, after):
    """Whether two headers name the same tensors: what else a flip may change is said nowhere."""
    return {k: v for k, v in before.items() if k != "__metadata__"} == {k: v for k, v in after.items() if k != "__metadata__"}


@row("F15", "broken checkpoints: inspect on all, serve on some")
def broken_checkpoints(row):
    chance = random.Random(15)
    with tempfile.TemporaryDirectory() as folder:
        model = Checkpoint(folder)
        shard = model.shards[0]
        good = model.good[shard]
        memory = 24 * 2**20 + len(good)  # what it takes for a good checkpoint, and no more than one of its files
        code, text, _ = run_limited([PROGRAM, "inspect", folder], memory)
        row.check(code == 0, f"the good checkpoint is refused: {text[-200:]}")
        start, header = model.header(shard)
        tensors = sorted(((value["data_offsets"], name) for name, value in header.items() if name != "__metadata__"))

        # Each case makes its file when its turn comes: a thousand copies at once would be this process's memory, and be counted.
        def cut(at):
            return lambda: good[:at] if at <= len(good) else good + b"\0"

        def flipped(at, by):
            return lambda: good[:at] + bytes([good[at] ^ by]) + good[at + 1:]

        cases = [("cut in the header", shard, cut(at), None) for at in sorted({0, 1, 4, 7, 8, 9, 8 + (start - 8) // 2, start - 2, start - 1, start})]
        # Each field of the header ends somewhere.
        bounds = [match.end() for match in re.finditer(rb'[,:{}\[\]]', good[8:start])]
        cases += [("cut in the header", shard, cut(8 + at), None) for at in (bounds if not row.short else chance.sample(bounds, 12))]
        ends = [(start + offsets[1] + by, name) for offsets, name in tensors for by in (-1, 0, 1) if start + offsets[1] + by != len(good)]
        for at, name in ends if not row.short else chance.sample(ends, 12):
            cases.append(("cut at a tensor", shard, cut(at), None))
        for _ in range(row.scale(1000, 40)):
            by = 1 << chance.randrange(8) if chance.random() < 0.5 else chance.randrange(1, 256)
            cases.append(("a flipped byte", shard, flipped(chance.randrange(start), by), None))
        cases.append(("a missing shard", shard, lambda: None, shard))
        name = tensors[len(tensors) // 2][1]
        shape = header[name]["shape"]

        def reworded(change):
            changed = json.loads(json.dumps(header))
            change(changed)
            text = json.dumps(changed, separators=(",", ":")).encode()
            return lambda: struct.pack("<Q", len(text)) + text + good[start:]

        for wrong in ([shape[0] + 1, *shape[1:]], shape[::-1] + [1], [], [2**40, *shape[1:]], [-1]):
            cases.append(("a wrong shape", shard, reworded(lambda h, w=wrong: h[name].update(shape=w)), name))
        cases.append(("a wrong type", shard, reworded(lambda h: h[name].update(dtype="F64")), name))
        cases.append(("a tensor less", shard, reworded(lambda h: h.pop(name)), None))
        cases.append(("a huge length", shard, lambda: struct.pack("<Q", 2**63) + good[8:], shard))
        kinds, slowest = {}, 0.0

        def try_one(kind, path, make, names):
            nonlocal slowest
            data = make()
            model.put(path, data)
            code, text, seconds = run_limited([PROGRAM, "inspect", folder], memory)
            slowest = max(slowest, seconds)
            kinds[kind] = kinds.get(kind, 0) + 1
            harmless = False
            if code == 0 and kind == "a flipped byte":
                try:
                    harmless = same_meaning(header, model.header(path, data)[1])
                except ValueError:
                    pass
            row.check(code in (1, 2) or harmless, f"{kind}: inspect ended with {code}: {text[-200:]}")
            row.check(harmless or path in text or name_in(text, header), f"{kind}: names neither file nor tensor: {text[-300:]}")
            if names:
                row.check(plain(names) in text, f"{kind}: does not name {names}: {text[-300:]}")
            return harmless

        def name_in(text, header):
            return any(plain(tensor) in text for tensor in header)

        def plain(tensor):  # as messages name it: without what some checkpoints put around all names
            return tensor.removeprefix("language_model.").removesuffix(".weight")

        serve_at = set(chance.sample(range(len(cases)), row.scale(60, 8))) | set(range(len(cases) - 9, len(cases)))
        served = 0
        for number, (kind, path, make, names) in enumerate(cases):
            harmless = try_one(kind, path, make, names)
            if number in serve_at and not harmless:
                served += 1
                code, text, seconds = run_limited([PROGRAM, "serve", folder, "--device", "cpu", "--host", "127.0.0.1", "--port", "0"])
                row.check(code in (1, 2) and "Ready" not in text, f"{kind}: serve ended with {code}: {text[-200:]}")
                row.check(path in text or name_in(text, header), f"{kind}: serve names neither file nor tensor: {text[-300:]}")
                slowest = max(slowest, seconds)
            model.restore()
        first, second = model.shards[:2]
        model.put(first, model.good[second])
        model.put(second, model.good[first])
        code, text, _ = run_limited([PROGRAM, "inspect", folder], memory)
        row.check(code == 1 and (first in text or second in text), f"swapped shards: inspect ended with {code}: {text[-200:]}")
        row.figure("broken files", len(cases) + 1)
        row.figure("kinds", ", ".join(f"{count} {kind}" for kind, count in kinds.items()))
        row.figure("also served", served)
        row.figure("slowest", f"{slowest:.2f} s")
        row.figure("memory of inspect limited to", f"{memory / 2**20:.0f} MiB")
        row.check(slowest <= 2, f"one took {slowest:.1f} s")


@row("F19", "the n-th allocation of the door fails, counted from a request's arrival")
def failing_malloc(row):
    count = row.scale(2000, 120)
    build = ROOT / "build/faults"
    build.mkdir(parents=True, exist_ok=True)
    shim = build / "nth_malloc.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(shim), str(pathlib.Path(__file__).with_name("nth_malloc.c")), "-ldl"], check=True)
    requests = [("/v1/completions", {"model": "m", "prompt": "Hello", "max_tokens": 3}),
                ("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3,
                                          "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}]}),
                ("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "stream": True}),
                ("/tokenize", {"prompt": "Hello, world " * 20}),
                ("/v1/responses", {"model": "m", "input": "Hi", "max_output_tokens": 3}),
                ("/v1/messages", {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3})]
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(16))
        file.flush()
        shared = mmap.mmap(file.fileno(), 16)
        env = {"LD_PRELOAD": str(shim), "NTH_MALLOC": file.name}
        outcomes, deaths, starts, odd = {}, [], 0, []
        server = None
        try:
            for n in range(1, count + 1):
                if server is None or server.process.poll() is not None:
                    server = Server(stand_in=1, env=env)
                    starts += 1
                    canary, idle = Canary(server), Idle(server)
                path, body = requests[n % len(requests)]
                shared[8:16] = bytes(8)
                shared[0:8] = struct.pack("<q", (n + 5) // 6 if row.short else 1 + n // 6)
                try:
                    outcome = call(server, path, body, timeout=20)[0]
                except OSError as error:
                    outcome = type(error).__name__
                shared[0:8] = bytes(8)
                failed = struct.unpack("<q", shared[8:16])[0]
                kind = str(outcome) if failed else "nothing failed"
                outcomes[kind] = outcomes.get(kind, 0) + 1
                if server.process.poll() is None and server.health(5) is None and wait_for(lambda: server.process.poll() is not None, 5) is None:
                    row.check(False, f"n = {n}, {path}: the door hangs")
                    server.kill()
                if server.process.poll() is None and failed and outcome not in (200, 500, 503):
                    odd.append((n, path, outcome))
                if server.process.poll() is not None:
                    deaths.append((n, path, server.process.returncode, server.text()[-150:].strip()))
                    server.kill()
                    server = None
            row.figure("allocations failed", count - outcomes.get("nothing failed", 0))
            row.figure("answers", ", ".join(f"{kind}: {number}" for kind, number in sorted(outcomes.items())))
            row.figure("ends of the door", len(deaths))
            bad = [death for death in deaths if death[2] < 0]
            row.check(not bad, f"{len(bad)} times a failed allocation killed the door by a signal, such as {bad[:1]}")
            row.check(not odd, f"{len(odd)} without an answer from a door that goes on: {odd[:3]}")
            if server is not None:
                row.check(canary.ok(server), "the canary")
                idle.check(row, server)
        finally:
            if server is not None:
                server.kill()
            shared.close()
