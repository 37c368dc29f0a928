#!/usr/bin/env python3
"""How many drafted tokens a model takes, by task, and that its answers are those without drafts.

    bench/draft_acceptance.py --program build/release/apps/baltoro --config '{"method": "eagle3"}'

Asks every case of the pocket model's held-out evaluation twice, greedily: a server without drafts, then
one with. For each task the counters of /metrics say how many tokens a step gave (1 + accepted drafts)
and how often the n-th draft was accepted; an answer that differs is counted and printed.
"""

import argparse
import collections
import concurrent.futures
import gzip
import json
import socket
import subprocess
import sys
import time
import urllib.request


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    def __init__(self, program, flags):
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        self.process = subprocess.Popen(
            [program, "serve", "--host", "127.0.0.1", "--port", str(port), *flags],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            try:
                urllib.request.urlopen(self.url + "/health").read()
                return
            except OSError:
                if self.process.poll() is not None:
                    sys.exit(f"the server ended with {self.process.returncode}")
                time.sleep(0.1)
        sys.exit("the server did not get ready")

    def stop(self):
        self.process.terminate()
        self.process.wait()

    def ask(self, case):
        body = {key: case[key] for key in ("messages", "tools", "response_format", "tool_choice") if key in case}
        body |= {"temperature": 0, "max_tokens": case["max_tokens"],
                 "chat_template_kwargs": {"thinking": case["thinking"]}}
        request = urllib.request.Request(self.url + "/v1/chat/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as answer:
            choice = json.loads(answer.read())["choices"][0]
        return choice["message"], choice["finish_reason"]

    def counters(self):
        counts = collections.Counter()
        for line in urllib.request.urlopen(self.url + "/metrics").read().decode().splitlines():
            if not line.startswith("vllm:spec_decode_num_"):
                continue
            name, value = line.rsplit(" ", 1)
            place = name.split('position="')
            kind = name.removeprefix("vllm:spec_decode_num_").split("{")[0].removesuffix("_total")
            counts[kind if len(place) == 1 else int(place[1].split('"')[0])] += float(value)
        return counts


def ask_all(server, cases, at_once):
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(server.ask, cases))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True)
    parser.add_argument("--config", required=True, help="of --speculative-config")
    parser.add_argument("--cases", default="pocket/eval/cases.jsonl.gz")
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--flags", default="--device cpu", help="of both servers")
    args = parser.parse_args()
    tasks = collections.defaultdict(list)
    for line in gzip.open(args.cases, "rt"):
        case = json.loads(line)
        tasks[case["task"]].append(case)

    flags = args.flags.split()
    server = Server(args.program, flags)
    started = time.time()
    plain = {task: ask_all(server, cases, args.at_once) for task, cases in tasks.items()}
    plain_seconds = time.time() - started
    server.stop()

    config = {"adaptive": False} | json.loads(args.config)  # as many in every step
    server = Server(args.program, [*flags, "--speculative-config", json.dumps(config)])
    print("| task | cases | drafts accepted, by place | tokens a step | other answers |")
    print("|---|---|---|---|---|")
    before, total, wrong = server.counters(), collections.Counter(), 0

    def row(name, cases, counts, differ):
        steps = max(counts["drafts"], 1)
        places = sorted(key for key in counts if isinstance(key, int))
        shares = ", ".join(f"{100 * counts[at] / steps:.0f} %" for at in places)
        print(f"| {name} | {cases} | {shares} | {1 + counts['accepted_tokens'] / steps:.2f} | {differ} |", flush=True)

    started = time.time()
    for task, cases in tasks.items():
        answers = ask_all(server, cases, args.at_once)
        differ = [case["id"] for case, a, b in zip(cases, answers, plain[task]) if a != b]
        now = server.counters()
        row(task, len(cases), now - before, len(differ))
        for one in differ:
            print(f"{one}: another answer", file=sys.stderr)
        total += now - before
        before, wrong = now, wrong + len(differ)
    row("all", sum(map(len, tasks.values())), total, wrong)
    print(f"\n{args.at_once} requests at once: {plain_seconds:.1f} s without drafts, {time.time() - started:.1f} s with")
    server.stop()
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
