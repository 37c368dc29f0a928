#!/usr/bin/env python3
"""What a long prompt does to the streams beside it, and what a target for steps costs in throughput.

    bench/stream_gap.py [--baltoro build/release/apps/baltoro] [--model pocket/model] [--targets 0 250] [--rounds 2] [-- FLAGS]

For each round and each `--target-step-ms`, a server of its own, so that the settings take turns on a machine that others use too:

- `--streams` streams decode; then a prompt of `--prompt` random tokens comes. Printed are the longest and the median time between two
  events of any stream while that prompt is computed, and the seconds until its first token.
- `--requests` requests of `--input` and `--output` tokens arrive, one every `--interval` seconds. Printed are the seconds from the first
  arrival to the last token, and tokens (prompt and answer) a second.

Everything after -- goes to `serve`.
"""
import argparse
import http.client
import json
import random
import re
import statistics
import subprocess
import tempfile
import threading
import time

VOCABULARY = 2000


class Server:
    def __init__(self, options, target):
        self.log = tempfile.NamedTemporaryFile(mode="r", prefix="stream-gap-", suffix=".log")
        self.process = subprocess.Popen(
            [options.baltoro, "serve", options.model, "--host", "127.0.0.1", "--port", "0", "--no-enable-prefix-caching",
             "--target-step-ms", target, *options.flags], stderr=self.log, stdout=subprocess.DEVNULL)
        while True:
            text = open(self.log.name).read()
            if found := re.search(r"Ready: http://([^\s:]+):(\d+)", text):
                break
            if self.process.poll() is not None:
                raise SystemExit("the server did not start:\n" + text)
            time.sleep(0.1)
        self.address = found.group(1), int(found.group(2))

    def stop(self):
        self.process.terminate()
        self.process.wait()

    def events(self, tokens, output):
        """The times at which the events of a completion came."""
        prompt = [random.randrange(VOCABULARY) for _ in range(tokens)]
        connection = http.client.HTTPConnection(*self.address)
        body = {"prompt": prompt, "max_tokens": output, "temperature": 0, "stream": True, "ignore_eos": True,
                "return_token_ids": True}  # a token without text, such as an end that is ignored, makes no event otherwise
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise SystemExit(response.read().decode())
        for line in response:
            if line.startswith(b"data: {"):
                yield time.monotonic()
        connection.close()


def gaps(server, options):
    over = threading.Event()
    times = [[] for _ in range(options.streams)]

    refused = []

    def stream(mine):
        try:
            for at in server.events(50, options.stream_tokens):
                mine.append(at)
                if over.is_set():
                    return
        except SystemExit as error:
            refused.append(error)

    threads = [threading.Thread(target=stream, args=(mine,)) for mine in times]
    for thread in threads:
        thread.start()
    while min(map(len, times)) < 20:
        if refused:
            raise refused[0]
        time.sleep(0.01)
    begin = time.monotonic()
    first = next(iter(server.events(options.prompt, 1)))
    time.sleep(0.5)
    over.set()
    for thread in threads:
        thread.join()
    between = [b - a for mine in times for a, b in zip(mine, mine[1:]) if b > begin and a < first]
    return max(between), statistics.median(between), first - begin


def steady(server, options):
    begin = time.monotonic()

    def one(at):
        time.sleep(max(0, at - time.monotonic()))
        for _ in server.events(options.input, options.output):
            pass

    threads = [threading.Thread(target=one, args=(begin + i * options.interval,)) for i in range(options.requests)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - begin
    return took, options.requests * (options.input + options.output) / took


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--baltoro", default="build/release/apps/baltoro")
    parser.add_argument("--model", default="pocket/model")
    parser.add_argument("--targets", nargs="+", default=["0", "250"])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--stream-tokens", type=int, default=20000, help="of each stream, more than come while the prompt is computed")
    parser.add_argument("--prompt", type=int, default=20000)
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--input", type=int, default=1000)
    parser.add_argument("--output", type=int, default=100)
    parser.add_argument("--interval", type=float, default=0.2)
    parser.add_argument("flags", nargs="*")
    options = parser.parse_args()
    for number in range(options.rounds):
        random.seed(number)
        for target in options.targets:
            server = Server(options, target)
            try:
                most, median, first = gaps(server, options)
                took, rate = steady(server, options)
            finally:
                server.stop()
            print(f"round {number + 1}, target {target:>4} ms: gap at most {most:.3f} s, median {median * 1e3:.1f} ms, "
                  f"first token of the prompt after {first:.1f} s; arrivals served in {took:.1f} s, {rate:.0f} tokens/s", flush=True)


if __name__ == "__main__":
    main()
