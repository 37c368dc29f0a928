"""Concurrent streams, checked token by token: an HTTP client that costs a few microseconds an event, and the function by which
the stand-in engine yields tokens (src/engine/stand_in.h)."""
import asyncio
import json
import math
import random
import time

MASK = (1 << 64) - 1


def stand_in_tokens(prompt, count):
    """The first `count` tokens after a prompt."""
    value, out = 0xcbf29ce484222325, []
    for token in prompt:
        value = ((value ^ token) * 0x100000001b3) & MASK
    for _ in range(count):
        token = (((value ^ value >> 29) * 0xbf58476d1ce4e5b9) & MASK) >> 56
        out.append(token)
        value = ((value ^ token) * 0x100000001b3) & MASK
    return out


class Answer:
    """What came of one request."""
    __slots__ = ("status", "headers", "tokens", "sent", "first", "last", "gaps", "finish", "error", "done", "closed", "body", "expected")

    def __init__(self, expected):
        self.status, self.headers, self.tokens, self.gaps = None, {}, [], []
        self.sent = time.monotonic()
        self.first = self.last = self.finish = self.error = None
        self.done = self.closed = False  # [DONE] came; the connection ended before the answer did
        self.body = b""
        self.expected = expected  # the tokens, or where a model chooses them, how many

    @property
    def whole(self):
        right = len(self.tokens) == self.expected if isinstance(self.expected, int) else self.tokens == self.expected
        return self.status == 200 and self.finish is not None and self.done and right

    @property
    def right_so_far(self):
        return isinstance(self.expected, int) or self.tokens == self.expected[:len(self.tokens)]

    @property
    def ended(self):
        """Told how it ended: whole, refused, or with an error event."""
        return self.whole or (self.status is not None and self.status != 200) or (self.error is not None and self.done)


class Connection(asyncio.Protocol):
    """One keep-alive connection with one request at a time."""

    def __init__(self):
        self.buffer, self.body, self.left = bytearray(), bytearray(), None
        self.answer = self.future = None
        self.open = True

    def connection_made(self, transport):
        self.transport = transport

    def ask(self, request, expected):
        self.answer = Answer(expected)
        self.future = asyncio.get_running_loop().create_future()
        self.buffer.clear()
        self.body.clear()
        self.left = None
        self.transport.write(request)
        return self.future

    def connection_lost(self, _):
        self.open = False
        if self.future is not None and not self.future.done():
            self.answer.closed = True
            self.future.set_result(self.answer)

    def data_received(self, data):
        if self.future is None or self.future.done():
            return
        self.buffer += data
        if self.answer.status is None:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            lines = bytes(self.buffer[:end]).decode("latin1").split("\r\n")
            del self.buffer[:end + 4]
            self.answer.status = int(lines[0].split()[1])
            self.answer.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
            if "content-length" in self.answer.headers:
                self.left = int(self.answer.headers["content-length"])
        if self.left is not None:
            if len(self.buffer) >= self.left:
                self.answer.body = bytes(self.buffer[:self.left])
                self.finish()
            return
        self.chunks()

    def chunks(self):
        while True:
            end = self.buffer.find(b"\r\n")
            if end < 0:
                break
            size = int(self.buffer[:end].split(b";")[0], 16)
            if len(self.buffer) < end + 2 + size + 2:
                break
            self.body += self.buffer[end + 2:end + 2 + size]
            del self.buffer[:end + 2 + size + 2]
            if size == 0:
                self.events()
                return self.finish()
        self.events()

    def events(self):
        now = time.monotonic()
        answer = self.answer
        while True:
            end = self.body.find(b"\n\n")
            if end < 0:
                return
            event = bytes(self.body[:end])
            del self.body[:end + 2]
            if not event.startswith(b"data: "):
                continue
            if event == b"data: [DONE]":
                answer.done = True
                continue
            value = json.loads(event[6:])
            if "error" in value:
                answer.error = value["error"]
                continue
            choice = value["choices"][0] if value["choices"] else {}
            tokens = choice.get("token_ids")
            if tokens:
                if answer.first is None:
                    answer.first = now
                else:
                    answer.gaps.append(now - answer.last)
                answer.last = now
                answer.tokens += tokens
            if choice.get("finish_reason"):
                answer.finish = choice["finish_reason"]

    def finish(self):
        if self.answer.headers.get("connection") == "close":
            self.transport.close()
            self.open = False
        self.future.set_result(self.answer)


def request_bytes(body, path="/v1/completions", headers=()):
    data = json.dumps(body, separators=(",", ":")).encode() if not isinstance(body, bytes) else body
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", f"Content-Length: {len(data)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def log_uniform(chance, low, high):
    return int(math.exp(chance.uniform(math.log(low), math.log(high + 1))))


def make_stream(chance, prompt_range, output_range, headers=()):
    """A streamed completion of random length, and the tokens that it must yield."""
    prompt = chance.choices(range(2048), k=log_uniform(chance, *prompt_range))
    count = log_uniform(chance, *output_range)
    body = {"model": "m", "prompt": prompt, "max_tokens": count, "stream": True, "ignore_eos": True, "return_token_ids": True}
    return request_bytes(body, headers=headers), stand_in_tokens(prompt, count)


def small(chance):
    return make_stream(chance, (16, 64), (20, 60))


async def connect(port):
    _, protocol = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
    return protocol


async def ask_once(port, request, expected):
    connection = await connect(port)
    try:
        return await connection.ask(request, expected)
    finally:
        connection.transport.close()


class Tally:
    """What many answers came to."""

    def __init__(self):
        self.requests = self.tokens = self.whole = self.wrong = self.lost = self.refused = 0
        self.statuses = {}
        self.first, self.gaps, self.odd = [], {}, []

    def add(self, answer, timed=True):
        self.requests += 1
        self.tokens += len(answer.tokens)
        self.statuses[answer.status] = self.statuses.get(answer.status, 0) + 1
        if not answer.right_so_far:
            self.wrong += 1
        if answer.whole:
            self.whole += 1
        elif answer.status == 200 or answer.status is None:
            self.lost += 1
        else:
            self.refused += 1
        if not answer.whole and len(self.odd) < 5:
            self.odd.append(f"status {answer.status}, {len(answer.tokens)} tokens, error {answer.error}, "
                            f"closed {answer.closed}, {answer.body[:120]!r}")
        if timed and answer.first is not None:
            self.first.append(answer.first - answer.sent)
            for gap in answer.gaps:
                bucket = int(gap * 1000)
                self.gaps[bucket] = self.gaps.get(bucket, 0) + 1

    def gap(self, share):
        """A percentile of the times between tokens, in seconds."""
        left = share * sum(self.gaps.values())
        for bucket in sorted(self.gaps):
            left -= self.gaps[bucket]
            if left <= 0:
                return bucket / 1000
        return float("nan")

    def server_errors(self):
        return sum(count for status, count in self.statuses.items() if status is not None and status >= 500)


async def closed_loop(port, streams, seconds, make, ramp=0.0, warm=0.0, seed=1, tally=None, patience=150):
    """`streams` connections, each with one request after another until `seconds` are over; answers under way are waited for, for
    `patience` seconds, and are lost then. Times count from `warm` seconds on."""
    tally = tally or Tally()
    begun = time.monotonic()

    async def one(number):
        chance = random.Random(seed * 100003 + number)
        await asyncio.sleep(ramp * number / streams)
        connection = None
        while time.monotonic() - begun < seconds:
            if connection is None or not connection.open:
                connection = await connect(port)
            sent = time.monotonic() - begun
            answer = await connection.ask(*make(chance))
            tally.add(answer, timed=sent >= warm)
            if not answer.whole:
                connection.transport.close()
                connection = None
                await asyncio.sleep(0.05)
        if connection is not None:
            connection.transport.close()

    tasks = [asyncio.create_task(one(number)) for number in range(streams)]
    done, late = await asyncio.wait(tasks, timeout=seconds + patience)
    for task in late:
        task.cancel()
        tally.requests += 1
        tally.lost += 1
    if late:
        tally.odd.append(f"no end of {len(late)} answers")
    for task in done:
        task.result()
    return tally


async def open_loop(port, rate, seconds, make, seed=1):
    """Requests at a fixed rate whatever becomes of them, each on its own connection: (when it was sent, answer) of all."""
    begun, tasks, chance = time.monotonic(), [], random.Random(seed)

    async def one(request, expected):
        at = time.monotonic() - begun
        return at, await ask_once(port, request, expected)

    count = int(rate * seconds)
    for i in range(count):
        late = begun + i / rate - time.monotonic()
        if late > 0:
            await asyncio.sleep(late)
        tasks.append(asyncio.create_task(one(*make(chance))))
    return await asyncio.gather(*tasks)
