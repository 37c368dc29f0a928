"""Rows L1, L3, L4, L8 and L9: load, against the stand-in engine."""
import asyncio
import random
import socket
import struct
import threading
import time

import hostile
from harness import Canary, Idle, Server, Watch, milliseconds, percentile, resident, row, wait_for
from streams import ask_once, closed_loop, make_stream, open_loop, request_bytes, stand_in_tokens

MIB = 1 << 20


def slope(points):
    """Units a second of a least-squares line."""
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def told(row, tally):
    row.figure("requests", tally.requests)
    row.figure("tokens", tally.tokens)
    row.figure("mismatches", tally.wrong)
    row.figure("lost", tally.lost)
    row.figure("5xx", tally.server_errors())


def nothing_lost(row, tally):
    told(row, tally)
    row.check(tally.wrong == 0, f"{tally.wrong} streams with wrong tokens: {tally.odd}")
    row.check(tally.lost == 0, f"{tally.lost} streams lost: {tally.odd}")
    row.check(tally.refused == 0, f"refused: {tally.statuses}: {tally.odd}")


@row("L1", "1,024 streams at once, prompts of 16 to 4k tokens, answers of 1 to 1k, each token compared")
def many_streams(row):
    streams, seconds, longest = row.scale((1024, 600, 1000), (256, 40, 300))
    warm = seconds / 5

    def mixed(chance):
        return make_stream(chance, (16, 4096), (1, longest))

    with Server("--max-num-seqs", str(streams), "--max-num-batched-tokens", "8192", stand_in=row.scale(100, 25)) as server:
        # What is kept for the next request (buffers, the allocator's arenas) is there before memory is taken.
        asyncio.run(closed_loop(server.port, streams, warm / 4, mixed, seed=2))
        canary, idle = Canary(server), Idle(server)
        pids = server.pid(), server.engine_pid()
        watch = Watch(lambda: sum(map(resident, pids)), 1)
        tally = asyncio.run(closed_loop(server.port, streams, seconds, mixed, ramp=warm / 2, warm=warm))
        memory = [(at, value) for at, value in watch.stop() if warm <= at <= seconds]
        nothing_lost(row, tally)
        half, tail = percentile(tally.first, 0.5), percentile(tally.first, 0.99)
        row.figure("TTFT p50", milliseconds(half))
        row.figure("p99", milliseconds(tail))
        row.figure("between tokens p50", milliseconds(tally.gap(0.5)))
        row.figure("p99", milliseconds(tally.gap(0.99)))
        row.check(tail <= 3 * half, f"p99 of the time to the first token is {tail / half:.1f} times the median, 3 are allowed")
        growth = slope(memory) * 60 / MIB
        row.figure("memory", f"{memory[-1][1] / MIB:.0f} MiB, {growth:+.2f} MiB/min")
        # A short run has no minute to fit a line to.
        row.check(row.short or growth <= 1, f"memory grows by {growth:.2f} MiB/min, 1 is allowed")
        row.check(canary.ok(server), "the canary")
        idle.check(row, server)


@row("L3", "three times the capacity, then half of it")
def overload(row):
    seconds = row.scale(120, 12)
    slots, queue, step = 32, 64, 0.02
    with Server("--max-num-seqs", str(slots), "--max-queued-requests", str(queue), stand_in=1000 * step) as server:
        def fifty(chance):
            return make_stream(chance, (16, 64), (50, 50))

        alone = asyncio.run(open_loop(server.port, 4, 3, fifty))
        usual = percentile([answer.first - answer.sent for _, answer in alone], 0.5)
        saturated = asyncio.run(closed_loop(server.port, slots, 6, fifty, warm=1))
        capacity = saturated.whole / 6
        canary, idle = Canary(server), Idle(server)
        waiting = Watch(lambda: server.metrics()["vllm:num_requests_waiting"], 0.25)
        answers = asyncio.run(open_loop(server.port, 3 * capacity, seconds, fifty))
        longest = max((value for _, value in waiting.stop() if value is not None), default=0)
        after = asyncio.run(open_loop(server.port, capacity / 2, row.scale(30, 12), fifty))

        good = [answer for _, answer in answers if answer.whole]
        rejected = [answer for _, answer in answers if answer.status == 429]
        other = [answer for _, answer in answers if not answer.whole and answer.status != 429]
        row.figure("capacity", f"{capacity:.1f}/s")
        row.figure("offered", len(answers))
        row.figure("answered", len(good))
        row.figure("429", len(rejected))
        row.check(not other, f"{len(other)} neither whole nor 429, such as {other[0].status if other else ''}")
        row.check(all(answer.right_so_far for answer in good), "wrong tokens")
        row.check(rejected and all(1 <= int(answer.headers.get("retry-after", 0)) <= 60 for answer in rejected), "429 without Retry-After")
        row.figure("longest queue", f"{longest:.0f} of {queue}")
        row.check(longest <= queue, "the queue is longer than its limit")
        ends = [at for at, answer in answers if answer.whole]
        goodput = len(good) / (max(ends) - min(ends) + 50 * step) if ends else 0
        row.figure("goodput", f"{100 * goodput / capacity:.0f} %")
        row.check(goodput >= 0.9 * capacity, f"goodput {goodput:.1f}/s of {capacity:.1f}/s")
        first = percentile([answer.first - answer.sent for answer in good], 0.99)
        longest_wait = (queue / slots + 1) * 50 * step + 1
        row.figure("TTFT p99 of accepted", milliseconds(first))
        row.check(first <= longest_wait, f"p99 of the time to the first token is {first:.1f} s, a full queue takes {longest_wait:.1f} s")
        back = [at for at, answer in after if not answer.whole or answer.first - answer.sent > 3 * usual + 0.1]
        recovery = max(back, default=0)
        row.figure("back to normal after", f"{recovery:.1f} s")
        row.check(recovery <= 10, "slow or refused answers 10 s after the overload")
        row.check(canary.ok(server), "the canary")
        idle.check(row, server)
        # How quickly a refusal comes is measured without the rest of the client's work in the way.
        quick = asyncio.run(refusals(server.port, slots + queue, row.scale(400, 100)))
        row.figure("refused in p99", milliseconds(percentile(quick, 0.99)))
        row.check(quick and percentile(quick, 0.99) <= 0.02, f"a refusal takes more than 20 ms ({len(quick)} seen)")


async def refusals(port, fill, count):
    """How long each of `count` refusals took, of a queue that is full and stays so."""
    chance = random.Random(3)

    def long(_):
        return make_stream(chance, (16, 64), (1500, 1500))

    full = []
    for _ in range(fill + 8):  # one after another: places in the queue become free as the first are taken from it
        full.append(asyncio.create_task(ask_once(port, *long(None))))
        await asyncio.sleep(0.03)
    times = []
    for _ in range(count):
        answer = await asyncio.wait_for(ask_once(port, *long(None)), 20)
        if answer.status == 429:
            times.append(time.monotonic() - answer.sent)
    for task in full:
        task.cancel()
    return times


def reset(connection):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


async def leave_early(port, count, at_once, seed):
    """`count` requests whose clients go away at a random moment, half of them with a reset."""
    gate = asyncio.Semaphore(at_once)

    async def one(number):
        chance = random.Random(seed + number)
        request, _ = make_stream(chance, (16, 2048), (100, 1000))
        async with gate:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            moment = chance.randrange(4)
            if moment == 0:  # inside the head or the body
                writer.write(request[:chance.randrange(len(request))])
            else:
                writer.write(request)
            if moment > 1:  # while it waits, is computed or streams
                try:
                    await asyncio.wait_for(reader.read(chance.choice((1, 2000, 20000))), chance.uniform(0, 0.5))
                except (asyncio.TimeoutError, ConnectionError):
                    pass
            if chance.random() < 0.5:
                writer.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
            else:
                writer.close()

    await asyncio.gather(*(one(number) for number in range(count)))


@row("L4", "clients that go away at random moments, 500 at once")
def disconnects(row):
    count = row.scale(10000, 1500)
    with Server("--max-num-seqs", "512", "--max-num-batched-tokens", "8192", stand_in=20) as server:
        asyncio.run(leave_early(server.port, 600, 500, 1))
        wait_for(lambda: server.metrics()["vllm:num_requests_running"] == 0, 5)
        canary, idle = Canary(server), Idle(server)
        begun = time.monotonic()
        asyncio.run(leave_early(server.port, count, 500, 1000))
        row.figure("requests", count)
        row.figure("in", f"{time.monotonic() - begun:.1f} s")
        idle.check(row, server)
        row.check(canary.ok(server), "the canary")
    # How much is computed for nobody: steps are slow here, and all clients leave at the same time.
    step, streams = 0.2, 100
    with Server(stand_in=1000 * step) as server:
        connections = []
        for number in range(streams):
            connection = socket.create_connection(("127.0.0.1", server.port))
            connection.sendall(make_stream(random.Random(number), (16, 64), (1000, 1000))[0])
            connections.append(connection)
        wait_for(lambda: server.metrics()["vllm:num_requests_running"] == streams, 10)
        time.sleep(3 * step)
        before, at = server.metrics()["vllm:generation_tokens_total"], time.monotonic()
        for connection in connections:
            reset(connection)
        closing = time.monotonic() - at
        wait_for(lambda: server.metrics()["vllm:num_requests_running"] == 0, 5)
        time.sleep(2 * step)
        steps = (server.metrics()["vllm:generation_tokens_total"] - before) / streams
        row.figure("steps after leaving", f"{steps:.1f}")
        row.check(steps <= 2 + 1 + closing / step, f"{steps:.1f} steps for clients that have left")


@row("L8", "a tenth of the traffic is hostile")
def hostile_mix(row):
    streams, seconds = row.scale((512, 300), (128, 20))
    with Server("--max-num-seqs", "1024", "--max-num-batched-tokens", "8192", stand_in=50) as server:
        canary, idle_ok = Canary(server), server.engine_pid()
        over, statuses = threading.Event(), {}

        def attack(number):
            chance = random.Random(number)
            vectors = hostile.vectors()
            while not over.is_set():
                name, data = chance.choice(vectors)
                outcome = hostile.send(server.port, data)
                statuses.setdefault(name, set()).add(outcome)
                time.sleep(chance.uniform(0, 0.2))

        attackers = [threading.Thread(target=attack, args=(number,)) for number in range(4)]
        for thread in attackers:
            thread.start()
        tally = asyncio.run(closed_loop(server.port, streams, seconds, lambda chance: make_stream(chance, (16, 4096), (1, row.scale(1000, 200))), ramp=2))
        over.set()
        for thread in attackers:
            thread.join()
        nothing_lost(row, tally)
        bad = {name: seen for name, seen in statuses.items() if any(isinstance(one, int) and one >= 500 for one in seen)}
        row.figure("kinds of attack", len(statuses))
        row.check(not bad, f"answered as the server's fault: {bad}")
        row.check(server.engine_pid() == idle_ok and canary.ok(server), "the canary")


@row("L9", "one key with 500 prompts of 32k tokens, another with a short request a second")
def fairness(row):
    prompts, seconds = row.scale((500, 120), (60, 15))
    step = 0.02
    with Server("--api-key", "greedy", "modest", "--max-num-seqs", "64", stand_in=1000 * step) as server:
        greedy, modest = ["Authorization: Bearer greedy"], ["Authorization: Bearer modest"]

        def short(chance):
            return make_stream(chance, (16, 32), (5, 5), modest)

        alone = asyncio.run(open_loop(server.port, 2, 6, short))
        usual = percentile([answer.first - answer.sent for _, answer in alone], 0.99)

        async def both():
            def long(chance):
                prompt = chance.choices(range(2048), k=32000)
                body = {"model": "m", "prompt": prompt, "max_tokens": 10, "stream": True, "ignore_eos": True, "return_token_ids": True}
                return request_bytes(body, headers=greedy), stand_in_tokens(prompt, 10)

            flood = [asyncio.create_task(open_loop(server.port, 1, 1, long, seed=number)) for number in range(prompts)]
            await asyncio.sleep(1)
            answers = await open_loop(server.port, 1, seconds, short, seed=7)
            for task in flood:
                task.cancel()
            return answers

        answers = asyncio.run(both())
        times = [answer.first - answer.sent for _, answer in answers if answer.whole]
        row.figure("TTFT p99 alone", milliseconds(usual))
        row.figure("beside the flood", milliseconds(percentile(times, 0.99)))
        row.check(len(times) == len(answers), f"{len(answers) - len(times)} short requests failed: {answers[0][1].status}")
        row.check(times and percentile(times, 0.99) <= 5 * usual, f"{percentile(times, 0.99) / usual:.1f} times as long, 5 are allowed")
