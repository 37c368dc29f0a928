"""Rows F1, F9, F13, F16, F21, F23 and F24: what happens to the processes."""
import asyncio
import contextlib
import ctypes
import json
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
import time

from harness import POCKET, Canary, Idle, Server, alive, call, milliseconds, processor_seconds, row, wait_for
from streams import Answer, closed_loop, connect, make_stream


def endless(chance, count=20000):
    return make_stream(chance, (16, 64), (count, count))


class Background:
    """Streams in a thread of their own; `answers` once `join` has returned. `when` notes the moment each of them ended."""

    def __init__(self, server, count, tokens=20000, seed=1):
        self.server, self.answers, self.when = server, [], []
        chance = random.Random(seed)
        self.requests = [endless(chance, tokens) for _ in range(count)]
        self.thread = threading.Thread(target=lambda: asyncio.run(self.run()))
        self.thread.start()

    async def run(self):
        async def one(request, expected):
            try:
                connection = await connect(self.server.port)
            except OSError:
                self.when.append(time.monotonic())
                answer = Answer(expected)
                answer.closed = True
                return answer
            answer = await connection.ask(request, expected)
            self.when.append(time.monotonic())
            connection.transport.close()
            return answer
        self.answers = await asyncio.gather(*(one(*request) for request in self.requests))

    def running(self):
        return self.server.metrics().get("vllm:num_requests_running", 0)

    def started(self, seconds=10):
        return wait_for(lambda: self.running() == len(self.requests), seconds)

    def join(self, seconds):
        self.thread.join(seconds)
        return not self.thread.is_alive()


def told_how(answers):
    """Those that ended in another way than whole, or with an error event (or an error body)."""
    return [answer for answer in answers if not answer.ended]


def describe(answers):
    one = answers[0]
    return f"{len(answers)}, such as: status {one.status}, {len(one.tokens)} tokens, error {one.error}, [DONE] {one.done}, cut {one.closed}"


def kill_engine(row, name, server, repeat, seen):
    """One kill; what took longest so far is in `seen`. Whether the server is there again."""
    streams = Background(server, 16, seed=repeat)
    if not row.check(streams.started() is not None, f"{name}: streams did not start"):
        return False
    time.sleep(random.Random(repeat).uniform(0, 0.3))
    engine, killed = server.engine_pid(), time.monotonic()
    os.kill(engine, signal.SIGKILL)
    unready = wait_for(lambda: server.health() == 503, 5, 0.002)
    row.check(unready is not None, f"{name}: /health stayed 200")
    if not row.check(streams.join(10), f"{name}: streams hang"):
        return False
    row.check(not server.stand_in or all(answer.right_so_far for answer in streams.answers), f"{name}: wrong tokens before the end")
    silent = told_how(streams.answers)
    row.check(not silent, f"{name}: ended without an error event: {silent and describe(silent)}")
    back = wait_for(lambda: server.ready() and server.engine_pid() not in (None, engine), 60)
    for what, value in (("503", unready or 9), ("end", max(streams.when) - killed), ("back", back or 99)):
        seen[what] = max(seen.get(what, 0), value)
    return row.check(back is not None, f"{name}: the engine did not come back")


@row("F1", "kill -9 of the engine at a random moment, stand-in; then with the pocket model and two ranks")
def killed_engine(row):
    in_a_row = 4  # the pause before a start grows while engines die young; a server that is new has none
    for name, repeats, flags, stand_in in (("stand-in", row.scale(100, 8), (), 5), ("two ranks", row.scale(20, 4), ("-tp", "2"), None)):
        seen = {}
        for group in range(repeats // in_a_row):
            with Server(*flags, stand_in=stand_in) as server:
                canary, idle = Canary(server), Idle(server)
                for repeat in range(group * in_a_row, (group + 1) * in_a_row):
                    if not kill_engine(row, name, server, repeat, seen):
                        return
                load = server.load_seconds
                row.check(canary.ok(server), f"{name}: the canary")
                idle.before["memory of the engine"] *= 1.5  # another process
                row.check(wait_for(lambda: not idle.broken(server), 2, 0.1) is not None, f"{name}: idle invariants: {idle.broken(server)}")
        row.figure(name, f"{repeats} times: streams ended in {milliseconds(seen['end'])}, /health 503 in {milliseconds(seen['503'])}, "
                         f"ready again in {seen['back']:.1f} s (start {load:.1f} s)")
        row.check(seen["end"] <= 5, f"{name}: streams ended after {seen['end']:.1f} s")
        row.check(seen["503"] <= 2, f"{name}: /health 503 after {seen['503']:.1f} s")
        row.check(seen["back"] <= load + 10, f"{name}: ready after {seen['back']:.1f} s")


@row("F9", "SIGSTOP of the engine and of the door")
def stopped(row):
    with Server(stand_in=20) as server:
        # The door has read once all that piles up below while it is stopped: its memory grows by that burst and keeps it.
        streams = Background(server, 32, tokens=900)
        streams.started()
        os.kill(server.pid(), signal.SIGSTOP)
        time.sleep(row.scale(20, 15))
        os.kill(server.pid(), signal.SIGCONT)
        streams.join(60)
        canary, idle = Canary(server), Idle(server)
        for name, pid in (("engine", server.engine_pid()), ("door", server.pid())):
            for seconds in (5, row.scale(60, 15)):
                streams = Background(server, 32, tokens=900)
                streams.started()
                engine = server.engine_pid()
                os.kill(pid if alive(pid) else engine, signal.SIGSTOP)
                seen = []
                begun = time.monotonic()
                while time.monotonic() - begun < seconds:
                    if name == "engine":
                        seen.append((time.monotonic() - begun, server.health(1)))
                    time.sleep(0.05)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
                if not row.check(streams.join(60), f"{name}, {seconds} s: streams hang"):
                    return
                whole = sum(answer.whole for answer in streams.answers)
                row.check(all(answer.right_so_far for answer in streams.answers), f"{name}, {seconds} s: wrong tokens")
                silent = told_how(streams.answers)
                row.check(not silent, f"{name}, {seconds} s: streams cut: {silent and describe(silent)}")
                if seconds == 5:
                    row.check(whole == 32, f"{name}, 5 s: {32 - whole} of 32 streams failed")
                note = f"{whole} of 32 whole"
                if name == "engine":
                    unready = next((at for at, status in seen if status == 503), None)
                    note += ", /health 503 after " + ("never" if unready is None else f"{unready:.1f} s")
                    row.check(unready is not None and unready <= 4, f"engine, {seconds} s: /health 503 after {unready}")
                row.figure(f"{name} {seconds} s:", note)
                back = wait_for(server.ready, 30)
                row.check(back is not None and canary.ok(server), f"{name}, {seconds} s: does not come back")
                if server.engine_pid() != engine:
                    idle.before["memory of the engine"] *= 1.5
        idle.check(row, server)


NAN = struct.pack("<H", 0x7fc0)


def poisoned_model(folder, token):
    """The pocket model with one token whose embedding is no number."""
    shutil.copytree(POCKET, folder)
    index = json.loads((pathlib.Path(folder) / "model.safetensors.index.json").read_text())["weight_map"]
    name = next(name for name in index if name.endswith("embed_tokens.weight"))
    path = pathlib.Path(folder) / index[name]
    data = bytearray(path.read_bytes())
    length = struct.unpack("<Q", data[:8])[0]
    entry = json.loads(data[8:8 + length])[name]
    width = 2 * entry["shape"][1]
    at = 8 + length + entry["data_offsets"][0] + token * width
    data[at:at + width] = NAN * (width // 2)
    path.write_bytes(data)


@row("F13", "one token's embedding is no number: whoever sends it fails, and nobody else")
def numerical_error(row):
    rounds = row.scale(60, 10)
    token = 1999
    with tempfile.TemporaryDirectory() as folder:
        poisoned_model(folder + "/model", token)
        with Server(model=folder + "/model") as server:
            chance = random.Random(9)
            prompts = [[chance.randrange(1900) for _ in range(150)] for _ in range(6)]

            def ask(prompt, **more):
                status, _, text = call(server, "/v1/completions", {"model": "m", "prompt": prompt, "max_tokens": 24, "temperature": 0,
                                                                   "ignore_eos": True, "return_token_ids": True, **more})
                return status, json.loads(text)

            # Answers among others are compared with answers among others: on a CPU they do not depend on company.
            alone = [ask(prompt)[1]["choices"][0]["token_ids"] for prompt in prompts]
            idle, failed, messages = None, 0, set()
            for number in range(rounds):
                if number == 2:
                    idle = Idle(server)  # buffers for steps of this size are there
                out = [None] * 9

                def one(i, prompt):
                    out[i] = ask(prompt)

                # Three poisoned prompts begin as a good one does: their blocks must not become its prefix.
                bad = [prompts[number % 6][:64 + 10 * i] + [token] + prompts[number % 6][64 + 10 * i:] for i in range(3)]
                threads = [threading.Thread(target=one, args=(i, prompt)) for i, prompt in enumerate(prompts + bad)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                for i in range(6):
                    row.check(out[i][0] == 200 and out[i][1]["choices"][0]["token_ids"] == alone[i], f"a good answer changed: {str(out[i])[:200]}")
                for status, value in out[6:]:
                    text = json.dumps(value)
                    failed += status != 200 and "numerical_error" in text
                    messages.add((status, text[:160]))
            row.figure("poisoned requests", f"{3 * rounds}, failed {failed}")
            row.figure("good ones beside them", f"{6 * rounds}, all alike")
            row.check(failed == 3 * rounds, f"a poisoned request did not fail as it should: {sorted(messages)[:2]}")
            row.check(all(ask(prompt)[1]["choices"][0]["token_ids"] == want for prompt, want in zip(prompts, alone)), "answers afterwards")
            idle.check(row, server)


def health_now(server):
    """200, 503, another status, or "refused"."""
    status = server.health(2)
    return "refused" if status is None else status


@row("F16", "SIGTERM: drain, a drain that is too short, none, a second signal")
def drain(row):
    repeats = row.scale(20, 3)
    slowest_503, late = 0.0, 0.0
    for repeat in range(repeats):
        server = Server("--shutdown-timeout", "30", stand_in=10)
        with server:
            streams = Background(server, 64, tokens=300, seed=repeat)
            streams.started()
            time.sleep(random.Random(repeat).uniform(0, 0.5))
            server.process.send_signal(signal.SIGTERM)
            # The old connection is the witness where new ones are refused.
            unready = wait_for(lambda: health_now(server) in (503, "refused"), 3, 0.002)
            slowest_503 = max(slowest_503, unready or 9)
            status = call_status(server)
            row.check(status in (503, "refused"), f"a new request while draining: {status}")
            row.check(streams.join(35), "streams hang while draining")
            whole = sum(answer.whole for answer in streams.answers)
            row.check(whole == 64, f"{whole} of 64 streams ended whole in the drain time")
            row.check(server.process.wait(10) == 0, f"exit code {server.process.returncode} after a drain")
    row.figure("drained", f"{repeats} x 64 streams; /health 503 or refused in {milliseconds(slowest_503)}")
    row.check(slowest_503 <= 0.1, f"/health 503 after {milliseconds(slowest_503)}")
    for name, timeout in (("too short", 2), ("none", 0)):
        for repeat in range(repeats):
            with Server("--shutdown-timeout", str(timeout), stand_in=10) as server:
                streams = Background(server, 16, seed=repeat)
                streams.started()
                begun = time.monotonic()
                server.process.send_signal(signal.SIGTERM)
                row.check(streams.join(timeout + 5), f"{name}: streams hang")
                silent = told_how(streams.answers)
                row.check(not silent, f"{name}: streams ended without an error event: {silent and describe(silent)}")
                try:
                    code = server.process.wait(timeout + 10)
                except subprocess.TimeoutExpired:
                    code = "none"
                late = max(late, time.monotonic() - begun - timeout)
                row.check(code == 0, f"{name}: exit code {code}")
    row.figure("later than the drain time by", f"{late:.2f} s")
    row.check(late <= 2, f"the end came {late:.1f} s after the drain time")
    slowest = 0.0
    for repeat in range(repeats):
        with Server("--shutdown-timeout", "60", stand_in=10) as server:
            streams = Background(server, 16, seed=repeat)
            streams.started()
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.5)
            begun = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.process.wait(5)
            slowest = max(slowest, time.monotonic() - begun)
            streams.join(10)
    row.figure("second signal", milliseconds(slowest))
    row.check(slowest <= 1, f"the second signal took {slowest:.1f} s")


def call_status(server):
    try:
        return call(server, "/v1/completions", {"model": "m", "prompt": "a", "max_tokens": 1}, timeout=5)[0]
    except OSError:
        return "refused"


@row("F21", "the wall clock jumps by an hour, forth and back (faketime)")
def clock_jumps(row):
    library = next(iter(pathlib.Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")), None)
    if not row.check(library is not None, "libfaketime is not installed"):
        return
    with tempfile.TemporaryDirectory() as folder:
        clock = pathlib.Path(folder) / "clock"
        clock.write_text("+0\n")
        env = {"LD_PRELOAD": str(library), "FAKETIME_TIMESTAMP_FILE": str(clock), "FAKETIME_NO_CACHE": "1", "DONT_FAKE_MONOTONIC": "1",
               "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        with Server(stand_in=10, env=env) as server:
            def created():
                return json.loads(call(server, "/v1/completions", {"model": "m", "prompt": "a", "max_tokens": 1})[2])["created"]

            canary, idle, jumps = Canary(server), Idle(server), 0
            row.check(abs(created() - time.time()) < 60, "the server's clock before the jumps")
            over = threading.Event()

            def jump():
                nonlocal jumps
                while not over.is_set():
                    for offset in ("+3600", "+0", "-3600", "+0"):
                        clock.with_suffix(".new").write_text(offset + "\n")
                        clock.with_suffix(".new").rename(clock)
                        jumps += 1
                        over.wait(0.3)

            thread = threading.Thread(target=jump)
            thread.start()
            seen, tally = set(), None
            for _ in range(row.scale(10, 3)):
                tally = asyncio.run(closed_loop(server.port, 32, row.scale(6, 2), lambda chance: make_stream(chance, (16, 1024), (20, 200)), tally=tally))
                seen.add(round((created() - time.time()) / 3600))
                row.check(server.health() == 200, "/health")
            over.set()
            thread.join()
            row.figure("jumps", jumps)
            row.figure("requests", tally.requests)
            row.figure("failed", tally.requests - tally.whole)
            row.check(tally.whole == tally.requests and tally.wrong == 0, f"requests failed: {tally.odd}")
            row.check(len(seen) > 1 or row.short, f"the server did not see the jumps: {seen}")
            row.check(canary.ok(server), "the canary")
            idle.check(row, server)


@row("F23", "SIGHUP, SIGPIPE, SIGUSR1, SIGUSR2 and 200 stops to both processes; standard streams closed")
def signals(row):
    repeats = row.scale(200, 40)
    for name in ("door", "engine"):
        for which in (signal.SIGHUP, signal.SIGPIPE, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGURG):
            with Server(stand_in=5) as server:
                pid = server.pid() if name == "door" else server.engine_pid()
                streams = Background(server, 8, tokens=200)
                streams.started(3)
                for _ in range(repeats // 10):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, which)
                    time.sleep(0.005)
                streams.join(30)
                whole = sum(answer.whole for answer in streams.answers)
                row.check(alive(pid) and server.process.poll() is None and whole == 8,
                          f"{which.name} to the {name}: it {'lives' if alive(pid) and server.process.poll() is None else 'died'}, {whole} of 8 streams whole")
    with Server(stand_in=5) as server:
        canary, idle = Canary(server), Idle(server)
        pids = {"door": server.pid(), "engine": server.engine_pid()}
        streams = Background(server, 32, tokens=row.scale(2000, 600))
        for _ in range(repeats):  # system calls come back with EINTR after a stop
            for pid in pids.values():
                os.kill(pid, signal.SIGSTOP)
                os.kill(pid, signal.SIGCONT)
            time.sleep(0.01)
        row.check(streams.join(120) and all(answer.whole for answer in streams.answers), "streams failed while the processes were stopped and went on")
        row.figure("signals", 12 * (repeats // 10) + 4 * repeats)
        row.check(canary.ok(server), "the canary")
        idle.check(row, server)
    with Server(stand_in=5, prefix=["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]) as server:
        streams = Background(server, 8, tokens=200)
        row.check(streams.join(30) and all(answer.whole for answer in streams.answers), "standard streams closed: requests failed")
        row.check(server.stop() == 0, "standard streams closed: exit code")
        row.figure("standard streams closed:", "serves, exit 0")


PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH = 0x4206, 0x4207, 17


def busiest_thread(pid):
    """The thread that computes: the one whose processor time grows most."""
    def times():
        return {int(path.name): processor_seconds(f"{pid}/task/{path.name}") for path in pathlib.Path(f"/proc/{pid}/task").iterdir()}
    before = times()
    time.sleep(1.5)
    return max(((value - before.get(thread, 0), thread) for thread, value in times().items()))[1]


@contextlib.contextmanager
def one_thread_stands_still(thread):
    """The other threads of its process go on, unlike with SIGSTOP."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    for what in (PTRACE_SEIZE, PTRACE_INTERRUPT):
        if libc.ptrace(what, thread, None, None) != 0:
            raise OSError(ctypes.get_errno(), "ptrace")
    os.waitpid(thread, 0x40000000)  # __WALL
    try:
        yield
    finally:
        libc.ptrace(PTRACE_DETACH, thread, None, None)


@row("F24", "the thread that runs the steps stands still for 30 s, the engine's others go on")
def stalled_step(row):
    seconds = row.scale(30, 12)
    with Server("--max-num-seqs", "64", stand_in=1) as server:
        canary = Canary(server)
        streams = Background(server, 64, tokens=30000)
        streams.started()
        engine = server.engine_pid()
        seen, begun = [], time.monotonic()
        with one_thread_stands_still(busiest_thread(engine)):
            begun = time.monotonic()
            while time.monotonic() - begun < seconds and alive(engine):
                seen.append((time.monotonic() - begun, server.health(1)))
                time.sleep(0.02)
        unready = next((at for at, status in seen if status != 200), None)
        row.figure("/health 503 after", "never" if unready is None else f"{unready:.1f} s")
        row.check(unready is not None and unready <= 3, f"/health was 200 for {unready} s of a stalled step")
        row.check(all(status in (200, 503) for _, status in seen), "/health did not answer")
        back = wait_for(server.ready, 60)
        row.figure("200 again after", "never" if back is None else f"{back:.1f} s")
        row.check(back is not None, "does not come back")
        streams.server.process.send_signal(0)
        server.kill()
        streams.join(10)
        row.check(all(answer.right_so_far for answer in streams.answers), "wrong tokens")
        row.check(canary.first is not None, "the canary")
