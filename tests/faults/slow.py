"""Rows L5 to L7: clients that send slowly, read slowly, or keep their connections and say nothing."""
import asyncio
import random
import re
import resource
import shutil
import socket
import subprocess
import threading
import time

from harness import Canary, Server, Watch, call, milliseconds, percentile, processor_seconds, resident, row, wait_for
from streams import closed_loop, make_stream, small

MIB = 1 << 20


class Honest:
    """Eight clients that keep asking in the background; their figures before and during."""

    def __init__(self, server, make=small):
        self.server, self.make = server, make

    def run(self, seconds):
        return asyncio.run(closed_loop(self.server.port, 8, seconds, self.make))

    def during(self, work):
        """The tally of answers while `work` runs in a thread of its own, and what it returned."""
        out, over = [], threading.Event()

        def run():
            try:
                out.append(work())
            finally:
                over.set()

        thread = threading.Thread(target=run)
        thread.start()
        tally = None
        while not over.is_set():
            tally = asyncio.run(closed_loop(self.server.port, 8, 2, self.make, tally=tally, seed=int(1000 * time.monotonic())))
        thread.join()
        return tally, out[0] if out else None


def slow_senders(port, count, start, piece, pause, limit):
    """When each of `count` connections was closed that send `start`, then `piece` every `pause` seconds."""
    connections = []
    for _ in range(count):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(start)
        connection.setblocking(False)
        connections.append(connection)
    begun, closed, last = time.monotonic(), [], 0.0
    while connections and time.monotonic() - begun < limit:
        for connection in list(connections):
            try:
                while connection.recv(4096):
                    pass
                over = True
            except BlockingIOError:
                over = False
            except OSError:
                over = True
            if over:
                closed.append(time.monotonic() - begun)
                connections.remove(connection)
                connection.close()
        if time.monotonic() - last >= pause:
            last = time.monotonic()
            for connection in connections:
                try:
                    connection.send(piece)
                except OSError:
                    pass
        time.sleep(0.05)
    for connection in connections:
        connection.close()
    return closed, len(connections)


def slowhttptest(server, mode, connections, seconds, path="/v1/completions"):
    """What Debian's slowhttptest reports of the server's availability."""
    options = {"header": ["-H"], "body": ["-B", "-s", "8192"], "range": ["-R"],
               "read": ["-X", "-w", "16", "-y", "32", "-n", "5", "-z", "8", "-k", "3"]}[mode]
    done = subprocess.run(["slowhttptest", *options, "-c", str(connections), "-i", "5", "-r", "400", "-l", str(seconds), "-p", "3",
                           "-u", f"http://127.0.0.1:{server.port}{path}"], capture_output=True, text=True, timeout=seconds + 60)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
    lines = [line for line in plain.splitlines() if "service available" in line]
    return [line.split(":")[1].strip() for line in lines]


@row("L5", "slow headers and bodies: slowhttptest -H, -B, -R, and connections of our own")
def slow_clients(row):
    seconds, attackers = row.scale((120, 2000), (15, 400))
    with Server(stand_in=10) as server:
        honest = Honest(server)
        before = honest.run(row.scale(20, 6))
        canary = Canary(server)
        row.figure("TTFT p99 alone", milliseconds(percentile(before.first, 0.99)))
        for mode, path in (("header", "/health"), ("body", "/v1/completions"), ("range", "/v1/models")):
            if shutil.which("slowhttptest") is None:
                row.check(False, "slowhttptest is not installed")
                break
            during, available = honest.during(lambda: slowhttptest(server, mode, attackers, seconds, path))
            ratio = percentile(during.first, 0.99) / percentile(before.first, 0.99)
            row.figure(f"{mode}: TTFT p99", f"{ratio:.2f} times")
            row.check(available and set(available) == {"YES"}, f"{mode}: slowhttptest says available {available}")
            row.check(during.whole == during.requests, f"{mode}: honest requests failed: {during.odd}")
            row.check(ratio <= 1.2 or row.short, f"{mode}: p99 of the time to the first token is {ratio:.2f} times that of before")
        head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n"
        closed, left = slow_senders(server.port, 50, head, b"X", 2, 17)
        row.figure("slow headers closed after", f"{max(closed, default=0):.1f} s")
        row.check(left == 0 and max(closed, default=99) <= 15, f"{left} connections with slow headers are open after 15 s")
        body = head + b"Content-Type: application/json\r\nContent-Length: 8192\r\n\r\n"
        # Half a kilobyte a second is below the least rate, which counts after ten seconds.
        closed, left = slow_senders(server.port, 50, body, b" " * 512, 1, row.scale(135, 25))
        row.figure("slow bodies closed after", f"{max(closed, default=0):.1f} s")
        row.check(left == 0 and max(closed, default=999) <= 130, f"{left} connections with slow bodies are still open")
        row.check(canary.ok(server), "the canary")


def slow_readers(port, count, seconds):
    """Streams whose clients take a byte a second: how many the server has given up by then, and when the last."""
    connections = []
    for number in range(count):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.connect(("127.0.0.1", port))
        connection.sendall(make_stream(random.Random(number), (16, 64), (30000, 30000))[0])
        connection.setblocking(False)
        connections.append(connection)
    begun, ended = time.monotonic(), []
    while connections and time.monotonic() - begun < seconds:
        time.sleep(1)
        for connection in list(connections):
            try:
                over = not connection.recv(1)
            except BlockingIOError:
                over = False
            except OSError:
                over = True
            if over:
                ended.append(time.monotonic() - begun)
                connections.remove(connection)
                connection.close()
    return connections, ended


@row("L6", "200 readers of a byte a second, and slowhttptest -X")
def slow_reading(row):
    readers = row.scale(200, 60)
    with Server("--max-num-seqs", "512", stand_in=10) as server:
        honest = Honest(server)
        before = honest.run(row.scale(20, 8))
        canary = Canary(server)
        memory = resident(server.pid())
        largest = Watch(lambda: resident(server.pid()))
        running = Watch(lambda: server.metrics()["vllm:num_requests_running"], 1)
        seconds = row.scale(100, 85)
        during, (connections, _) = honest.during(lambda: slow_readers(server.port, readers, seconds))
        grown = max(value for _, value in largest.stop()) - memory
        left = server.metrics()["vllm:num_requests_running"]
        # A reset does not show to a reader who still has bytes in his buffer: the server's own count does.
        gone = next((at for at, value in running.stop() if at > 10 and value is not None and value <= 8), None)
        row.figure("all given up after", "never" if gone is None else f"{gone:.0f} s")
        row.check(left <= 8, f"{left:.0f} slow readers are served after {seconds} s")
        row.figure("memory of the door", f"+{grown / MIB / readers:.2f} MiB a reader")
        row.check(grown <= 1.3 * MIB * readers, f"{grown / MIB:.0f} MiB for {readers} readers")
        ratio = during.gap(0.99) / max(before.gap(0.99), 0.001)
        row.figure("others' time between tokens p99", f"{milliseconds(before.gap(0.99))}, then {milliseconds(during.gap(0.99))}")
        row.check(ratio <= 1.1 or during.gap(0.99) - before.gap(0.99) <= 0.0011 or row.short, f"others wait {ratio:.2f} times as long")
        row.check(during.whole == during.requests, f"honest requests failed: {during.odd}")
        for connection in connections:
            connection.close()
        available = slowhttptest(server, "read", row.scale(2000, 400), row.scale(120, 15), "/openapi.json")
        row.check(available and set(available) == {"YES"}, f"slowhttptest -X says available {available}")
        row.figure("slowhttptest -X: available", "/".join(available))
        row.check(canary.ok(server), "the canary")


def idle_connections(port, count):
    connections = []
    for _ in range(count):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        connections.append(connection)
    for connection in connections:
        connection.settimeout(10)
        connection.recv(4096)
        connection.setblocking(False)
    return connections


def still_open(connections):
    count = 0
    for connection in connections:
        try:
            count += bool(connection.recv(16, socket.MSG_PEEK))
        except BlockingIOError:
            count += 1
        except OSError:
            pass
    return count


@row("L7", "8,000 idle connections; a server with 512 file descriptors")
def idle_clients(row):
    count = row.scale(8000, 2000)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if not row.check(hard >= count + 200, f"ulimit -Hn is {hard}"):
        return
    with Server(stand_in=10) as server:
        for connection in idle_connections(server.port, 50):
            connection.close()
        time.sleep(0.3)
        before = resident(server.pid())
        begun = time.monotonic()
        connections = idle_connections(server.port, count)
        each = (resident(server.pid()) - before) / count
        row.figure("memory of a connection", f"{each / 1024:.1f} KiB")
        row.check(each <= 16384, f"{each:.0f} bytes a connection")
        row.check(call(server, "/health")[0] == 200, "/health while they are open")
        wait_for(lambda: still_open(connections) == 0, 40, 0.5)
        row.figure("closed after", f"{time.monotonic() - begun:.0f} s")
        row.check(still_open(connections) == 0, f"{still_open(connections)} idle connections are open after {time.monotonic() - begun:.0f} s")
        for connection in connections:
            connection.close()
    with Server(stand_in=10, files=512) as server:
        connections = []
        for _ in range(700):
            connections.append(socket.create_connection(("127.0.0.1", server.port)))
        time.sleep(0.5)
        used = processor_seconds(server.pid())
        time.sleep(4)
        share = (processor_seconds(server.pid()) - used) / 4
        row.figure("processor without file descriptors", f"{100 * share:.1f} %")
        row.check(share <= 0.05, f"{100 * share:.0f} % of a processor while no connection can be accepted")
        for connection in connections:
            connection.close()
        back = wait_for(lambda: server.health(1) == 200, 10)
        row.figure("recovers in", "never" if back is None else milliseconds(back))
        row.check(back is not None and Canary(server).ok(server), "does not recover")
