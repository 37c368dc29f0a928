#!/usr/bin/env python3
"""Rows L2, F18 and F20, on a machine with an H100 or H200: a greedy load with a canary, allocations that fail, a CUDA error that stays.

    python3 tests/faults/gpu.py [--seconds 300] [--starts 60] [--repeats 10] [L2] [F18] [F20]

Needs Python, a C compiler, and `baltoro` (BALTORO names it) with libbaltoro_cuda.so beside it or where BALTORO_CUDA_MODULE says.
"""
import argparse
import asyncio
import mmap
import os
import pathlib
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time

os.environ["BALTORO_FAULTS_DEVICE"] = "cuda"
sys.path.insert(0, str(pathlib.Path(__file__).parent))
from harness import PROGRAM, POCKET, ROOT, ROWS, Canary, Idle, Row, Server, Watch, alive, free_port, milliseconds, row, wait_for  # noqa: E402
from process import Background, describe  # noqa: E402
from streams import closed_loop, log_uniform, request_bytes  # noqa: E402

OPTIONS = argparse.Namespace(seconds=300, starts=60)
SERVE = ("--max-model-len", "8192", "--kv-cache-memory-bytes", "8G")


def gpu_memory():
    out = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True).stdout
    return int(out.split()[0])


def greedy(chance):
    """Tokens come in groups of 16 an event, so that the client is not what is measured."""
    prompt = chance.choices(range(2000), k=log_uniform(chance, 16, 2048))
    count = log_uniform(chance, 64, 1000)
    body = {"model": "m", "prompt": prompt, "max_tokens": count, "stream": True, "ignore_eos": True, "return_token_ids": True, "temperature": 0}
    return request_bytes(body), count


@row("L2", "256 greedy streams; a canary every 5 s")
def greedy_load(row):
    seconds = OPTIONS.seconds
    with Server(*SERVE, "--max-num-seqs", "256", "--stream-interval", "16", "--deterministic") as server:
        asyncio.run(closed_loop(server.port, 256, 15, greedy))
        canary, idle, memory = Canary(server), Idle(server), gpu_memory()
        ok = Watch(lambda: canary.ok(server), 5)
        generated = Watch(lambda: server.metrics()["vllm:generation_tokens_total"], 1)
        tally = asyncio.run(closed_loop(server.port, 256, seconds, greedy))
        canaries = [value for _, value in ok.stop()]
        counts = [(at, value) for at, value in generated.stop() if value is not None]

        def rate(start, end):
            inside = [(at, value) for at, value in counts if start <= at <= end]
            return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])

        second, last = rate(60, 120), rate(seconds - 60, seconds)
        row.figure("requests", tally.requests)
        row.figure("failed", tally.requests - tally.whole)
        row.figure("tokens/s in the second minute", f"{second:.0f}, in the last {last:.0f} ({100 * last / second:.1f} %)")
        row.figure("canaries", f"{len(canaries)}, {canaries.count(True)} alike")
        row.figure("GPU memory", f"{memory} MiB, then {gpu_memory()}")
        row.check(tally.whole == tally.requests, f"requests failed: {tally.odd}")
        row.check(canaries and all(canaries), "the canary changed")
        row.check(last >= 0.97 * second, "the throughput fell")
        row.check(gpu_memory() == memory, "GPU memory is not what it was")
        idle.check(row, server)


class Faults:
    """The library between runtime and driver, and the numbers that it shares with us."""

    def __init__(self):
        folder = ROOT / "build/faults"
        folder.mkdir(parents=True, exist_ok=True)
        library = folder / "cuda_faults.so"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(pathlib.Path(__file__).with_name("cuda_faults.c")), "-ldl"], check=True)
        self.file = tempfile.NamedTemporaryFile()
        self.file.write(bytes(32))
        self.file.flush()
        self.shared = mmap.mmap(self.file.fileno(), 32)
        self.env = {"LD_PRELOAD": str(library), "CUDA_FAULTS": self.file.name}

    def set(self, countdown=0, broken=0):
        self.shared[:] = struct.pack("<4q", countdown, broken, 0, 0)

    def get(self):
        return struct.unpack("<4q", self.shared[:])


@row("F18", "the n-th call that makes device memory, host memory, a stream, an event or a graph fails")
def failing_allocations(row):
    faults = Faults()
    with Server(*SERVE, env=faults.env) as server:
        made = faults.get()[3]
        canary = Canary(server)
        row.figure("calls of a start", made)
        row.check(made > 10, "the library does not see the driver's calls")
        # While it serves nothing should be made; what is, may cost its request and no more.
        faults.set(countdown=1)
        streams = Background(server, 32, tokens=500)
        row.check(streams.join(60), "serving: streams hang")
        row.figure("made while serving", faults.get()[3])
        failed = faults.get()[2]
        silent = [answer for answer in streams.answers if answer.status == 200 and not (answer.finish and answer.done) and not answer.error]
        row.check(not silent, f"serving: streams cut: {silent and describe(silent)}")
        faults.set()
        row.check(wait_for(server.ready, 60) is not None and (failed == 0 or wait_for(lambda: canary.ok(server), 30) is not None), "serving: does not come back")
    numbers = sorted({*range(1, min(20, made) + 1), *(1 + round(i * (min(200, made) - 1) / max(1, OPTIONS.starts)) for i in range(OPTIONS.starts))})
    slowest, named, odd = 0.0, {}, []
    for n in numbers:
        faults.set(countdown=n)
        begun = time.monotonic()
        process = subprocess.Popen([PROGRAM, "serve", POCKET, "--device", "cuda", "--host", "127.0.0.1", "--port", str(free_port()), *SERVE],
                                   env={**os.environ, **faults.env}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        text = []
        # It ends, or it is ready all the same: an allocation that has another way (a graph, a workspace).
        os.set_blocking(process.stderr.fileno(), False)
        while process.poll() is None and time.monotonic() - begun < 60 and "Ready:" not in "".join(text):
            text.append((process.stderr.read() or b"").decode(errors="replace"))
            time.sleep(0.02)
        ready = "Ready:" in "".join(text)
        if process.poll() is None:
            process.send_signal(signal.SIGTERM if ready else signal.SIGKILL)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
        text = "".join(text) + (process.stderr.read() or b"").decode(errors="replace")
        slowest = max(slowest, time.monotonic() - begun)
        said = [line for line in text.splitlines() if re.search(r"ERROR|cannot|failed", line)]
        what = re.search(r"(cuda\w+|cu[A-Z]\w+)[^:]{0,60}", said[-1]) if said else None
        if ready:
            named["ready all the same"] = named.get("ready all the same", 0) + 1
        elif process.returncode != 1 or what is None:
            odd.append((n, process.returncode, said[-1][-200:] if said else text[-200:]))
        else:
            named[what[0][:60]] = named.get(what[0][:60], 0) + 1
    row.figure("starts", len(numbers))
    row.figure("slowest", f"{slowest:.1f} s")
    row.figure("said", "; ".join(f"{count} x {what}" for what, count in sorted(named.items(), key=lambda item: -item[1])[:12]))
    row.check(not odd, f"{len(odd)} starts ended without exit code 1 and a reason: {odd[:3]}")


@row("F20", "an illegal address that stays: every launch and wait of the engine fails from a random moment on")
def sticky_error(row):
    faults = Faults()
    slowest_503 = slowest_end = slowest_exit = slowest_back = 0.0
    repeats = OPTIONS.repeats
    with Server(*SERVE, env=faults.env) as server:
        canary = Canary(server)
        for repeat in range(repeats):
            streams = Background(server, 16, tokens=7000, seed=repeat)
            streams.started()
            time.sleep(random.Random(repeat).uniform(0, 0.5))
            engine, begun = server.engine_pid(), time.monotonic()
            faults.set(broken=engine)
            unready = wait_for(lambda: server.health() == 503, 5, 0.005)
            gone = wait_for(lambda: not alive(engine), 15)
            row.check(unready is not None and gone is not None, f"/health 503 after {unready}, process ended after {gone}")
            if not row.check(streams.join(15), "streams hang"):
                return
            silent = [answer for answer in streams.answers if answer.error is None or not answer.done]
            row.check(not silent, f"streams without an error event: {silent and describe(silent)}")
            back = wait_for(lambda: server.ready() and server.engine_pid() not in (None, engine), 60)
            if not row.check(back is not None and canary.ok(server), "does not come back with the same answer"):
                return
            slowest_503, slowest_exit = max(slowest_503, unready or 9), max(slowest_exit, gone or 99)
            slowest_end, slowest_back = max(slowest_end, max(streams.when) - begun), max(slowest_back, back)
            row.check(faults.get()[2] > 0, "the library failed no call")
    row.figure("times", repeats)
    row.figure("/health 503 in", milliseconds(slowest_503))
    row.figure("streams ended in", milliseconds(slowest_end))
    row.figure("process ended in", milliseconds(slowest_exit))
    row.figure("ready again in", f"{slowest_back:.1f} s")
    row.check(slowest_503 <= 1 and slowest_exit <= 10, "too slow")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=300, help="of L2")
    parser.add_argument("--starts", type=int, default=60, help="of F18")
    parser.add_argument("--repeats", type=int, default=10, help="of F20")
    parser.add_argument("rows", nargs="*")
    parser.parse_args(namespace=OPTIONS)
    failed = 0
    for name in OPTIONS.rows or ("L2", "F18", "F20"):
        one = Row(name, False)
        begun = time.monotonic()
        one.run(OPTIONS.seconds + 300)
        failed += bool(one.failures)
        print(f"{'FAIL' if one.failures else 'pass'} {name}: {ROWS[name][0]} ({time.monotonic() - begun:.0f} s)\n     {'; '.join(one.figures)}", flush=True)
        for failure in list(dict.fromkeys(one.failures))[:8]:
            print(f"     failed: {failure}", flush=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
