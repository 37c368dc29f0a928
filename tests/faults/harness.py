"""What the rows of faults share: a server under test, its idle invariants, a canary, and the list of rows itself."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import resource
import signal
import socket
import subprocess
import tempfile
import threading
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("BALTORO", str(ROOT / "build/release/apps/baltoro"))
POCKET = str(ROOT / "pocket/model")
# Clients open thousands of connections.
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
ROWS = {}
ALLOCATOR = 4 << 20  # bytes that it may keep beside the 5 %: a door without work has 12 MiB


def row(name, what):
    """Registers a function as a row of the table: it gets a Row, states figures and checks what must hold."""
    def register(function):
        ROWS[name] = (what, function)
        return function
    return register


class Row:
    """One run of one row. `short` asks for reduced counts."""

    def __init__(self, name, short):
        self.name, self.short = name, short
        self.figures, self.failures = [], []

    def scale(self, full, short):
        return short if self.short else full

    def figure(self, name, value):
        self.figures.append(f"{name} {value}")

    def check(self, holds, what):
        if not holds:
            self.failures.append(what)
        return holds

    def run(self, seconds):
        def too_long(*_):
            raise TimeoutError(f"the row took longer than {seconds} s")
        signal.signal(signal.SIGALRM, too_long)
        signal.alarm(seconds)
        try:
            ROWS[self.name][1](self)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.failures.append(f"{type(error).__name__}: {str(error)[:300]} ({pathlib.Path(where.filename).name}:{where.lineno})")
        finally:
            signal.alarm(0)


def wait_for(condition, seconds, pause=0.02):
    """How long it took until the condition held; None if it did not in time."""
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        if condition():
            return time.monotonic() - begun
        time.sleep(pause)
    return None


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def milliseconds(seconds):
    return f"{1000 * seconds:.0f} ms" if seconds >= 0.01 else f"{1000 * seconds:.1f} ms"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def resident(pid):
    """Bytes of a process's resident memory."""
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def processor_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Server:
    """One `baltoro serve` on a port of its own. `stand_in` milliseconds a step, or None for the pocket model."""

    def __init__(self, *flags, stand_in=None, model=POCKET, env=None, prefix=(), files=None, wait=60, **popen):
        self.port = free_port()
        self.log = tempfile.NamedTemporaryFile(prefix="baltoro-faults-", suffix=".log")
        self.stand_in = stand_in is not None
        flags = list(flags)
        if self.stand_in:
            flags += ["--load-format", "stand-in", "--stand-in-step-ms", str(stand_in)]
        else:
            flags += ["--device", os.environ.get("BALTORO_FAULTS_DEVICE", "cpu")]

        def limit_files():
            soft, hard = (files, files) if files else (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

        self.command = [*prefix, PROGRAM, "serve", model, "--served-model-name", "m", "--host", "127.0.0.1", "--port",
                        str(self.port), *flags]
        popen.setdefault("stderr", self.log)
        popen.setdefault("stdout", subprocess.DEVNULL)
        self.started = time.monotonic()
        self.process = subprocess.Popen(self.command, env={**os.environ, **(env or {})}, preexec_fn=limit_files, **popen)
        self.load_seconds = None
        if wait:
            self.load_seconds = wait_for(lambda: self.ready() or self.process.poll() is not None, wait)
            if self.load_seconds is None or self.process.poll() is not None:
                self.kill()
                raise RuntimeError("the server did not start: " + self.text()[-600:])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def kill(self):
        engine = self.engine_pid()
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        if engine is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(engine, signal.SIGCONT)
            if wait_for(lambda: not alive(engine), 5) is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(engine, signal.SIGKILL)

    def text(self):
        return pathlib.Path(self.log.name).read_text(errors="replace")

    def ready(self):
        return self.health() == 200

    def health(self, timeout=5):
        try:
            return call(self, "/health", timeout=timeout)[0]
        except OSError:
            return None

    def pid(self):
        return self.process.pid

    def engine_pid(self):
        for children in pathlib.Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            with contextlib.suppress(OSError, ValueError):
                for child in map(int, children.read_text().split()):
                    if b"engine" in pathlib.Path(f"/proc/{child}/cmdline").read_bytes():
                        return child
        return None

    def metrics(self):
        """Values without their labels; those of several series are added up."""
        found = {}
        for line in call(self, "/metrics")[2].splitlines():
            match = re.match(r"([\w:]+)(?:\{[^}]*\})? (\S+)$", line)
            if match:
                found[match[1]] = found.get(match[1], 0) + float(match[2])
        return found

    def stop(self, seconds=30):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)


def call(server, path, body=None, headers=None, method=None, timeout=60):
    """(status, headers, text) of one request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=timeout)
    try:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method or ("GET" if body is None else "POST"), path, data,
                           {"Content-Type": "application/json", **(headers or {})})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode(errors="replace")
    except http.client.HTTPException as error:
        raise ConnectionError(f"{type(error).__name__}: {error}") from error
    finally:
        connection.close()


class Watch:
    """Samples something twice a second, in the background."""

    def __init__(self, sample, pause=0.5):
        self.sample, self.pause, self.values, self.over = sample, pause, [], threading.Event()
        self.begun = time.monotonic()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.over.wait(self.pause):
            try:
                self.values.append((time.monotonic() - self.begun, self.sample()))
            except OSError:
                self.values.append((time.monotonic() - self.begun, None))

    def stop(self):
        self.over.set()
        self.thread.join()
        return self.values


class Canary:
    """One prompt, answered greedily; whatever happens, its answer stays what it was."""
    BODY = {"model": "m", "prompt": [72, 101, 108, 108, 111, 44, 32, 119], "max_tokens": 64, "temperature": 0,
            "ignore_eos": True, "return_token_ids": True}

    def __init__(self, server):
        self.first = self.ask(server)

    def ask(self, server):
        status, _, text = call(server, "/v1/completions", self.BODY)
        if status != 200:
            raise RuntimeError(f"the canary was answered {status}: {text[:200]}")
        choice = json.loads(text)["choices"][0]
        return choice["token_ids"], choice["text"]

    def ok(self, server):
        try:
            return self.ask(server) == self.first
        except (OSError, RuntimeError):
            return False


class Idle:
    """The idle invariants: taken when nothing runs, compared when nothing runs any more."""

    def __init__(self, server):
        self.before = self.take(server)

    @staticmethod
    def take(server):
        values = server.metrics()
        taken = {"running": values["vllm:num_requests_running"], "waiting": values["vllm:num_requests_waiting"],
                 "used blocks": values["vllm:kv_cache_usage_perc"]}
        for name, pid in (("door", server.pid()), ("engine", server.engine_pid())):
            taken[f"fds of the {name}"] = len(os.listdir(f"/proc/{pid}/fd"))
            taken[f"threads of the {name}"] = len(os.listdir(f"/proc/{pid}/task"))
            taken[f"memory of the {name}"] = resident(pid)
        return taken

    def broken(self, server):
        now, out = self.take(server), []
        for name, value in now.items():
            before = self.before[name]
            if name in ("running", "waiting", "used blocks"):
                holds = value == 0
            elif name.startswith("fds"):
                holds = abs(value - before) <= 2
            elif name.startswith("threads"):
                holds = value == before
            else:
                holds = value <= 1.05 * before + ALLOCATOR
            if not holds:
                out.append(f"{name}: {before:g} before, {value:g} after")
        return out

    def check(self, row, server, seconds=2):
        took = wait_for(lambda: not self.broken(server), seconds, 0.1)
        row.check(took is not None, "idle invariants: " + "; ".join(self.broken(server)))
        if took is not None:
            row.figure("idle after", milliseconds(took))
