#!/usr/bin/env python3
"""Whether drafts change an answer, in every form of the weights, of the cache, and on every layout of ranks.

    bench/draft_cells.py --program build/release/apps/baltoro --drafts turns

A cell is a form of the weights, a form of the cache, a layout and a number of drafts a step. For each of the first three a
server without drafts answers 200 short cases of the pocket model's held-out evaluation, greedily; then servers with the draft model, for
each number of drafts (`--drafts turns`: one number for each such server, all of them in turns). Answers are compared to
the last digit of every token's log-probability. Over decode-context ranks, where numbers depend on which rank has which block, the
tokens are compared, in float32.

Prints for each cell the answers that differ and the tokens that a step with drafts gave.
"""

import argparse
import concurrent.futures
import gzip
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile
import urllib.request

from draft_acceptance import Server

POCKET = pathlib.Path(__file__).resolve().parents[1] / "pocket"
WEIGHTS = ("bf16", "fp8", "int4", "w4a8", "online fp8")
CACHES = ("auto", "fp8", "fp8_ds_mla")
LAYOUTS = {"one rank": "", "TP 2": "-tp 2", "PP 2": "-pp 2", "DCP 2": "-tp 2 -dcp 2 --dtype float32"}
CASES, LENGTH_MAX = 200, 1200  # of all that say so little; answers are what counts here


def ask(server, case):
    """The tokens of an answer, and their log-probabilities as they were written."""
    body = {key: case[key] for key in ("messages", "tools", "response_format", "tool_choice") if key in case}
    body |= {"temperature": 0, "max_tokens": min(case["max_tokens"], 64), "logprobs": True,
             "chat_template_kwargs": {"thinking": case["thinking"]}}
    request = urllib.request.Request(server.url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=3000) as answer:
        choice = json.loads(answer.read(), parse_float=str)["choices"][0]
    tokens = [one["token"] for one in choice["logprobs"]["content"]]
    return choice["message"], choice["finish_reason"], tokens, [one["logprob"] for one in choice["logprobs"]["content"]]


def answers_of(program, flags, cases, exact, at_once=64):
    """The answers of a server, and what a step with drafts gave."""
    server = Server(program, flags)
    try:
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            answers = list(pool.map(lambda case: ask(server, case), cases))
        counts = server.counters()
    finally:
        server.stop()
    gave = 1 + counts["accepted_tokens"] / counts["drafts"] if counts["drafts"] else 1
    return [answer if exact else answer[:3] for answer in answers], gave


def weights_of(program, form, folder):
    """Flags of a server with the pocket model in a form."""
    if form == "bf16":
        return [str(POCKET / "model")]
    if form == "online fp8":
        return [str(POCKET / "model"), "--online-quantization", "fp8"]
    if not (made := folder / form).exists():
        subprocess.run([program, "quantize", str(POCKET / "model"), str(made), "--format", form], check=True,
                       stdout=subprocess.DEVNULL)
    return [str(made)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True)
    parser.add_argument("--drafts", default="1,2,3,4,5", help="numbers of drafts, or turns")
    parser.add_argument("--draft-model", default=str(POCKET / "draft-mla"))
    parser.add_argument("--weights", default=",".join(WEIGHTS))
    parser.add_argument("--caches", default=",".join(CACHES))
    parser.add_argument("--layouts", default=",".join(LAYOUTS))
    parser.add_argument("--cases", default=str(POCKET / "eval/cases.jsonl.gz"))
    args = parser.parse_args()
    short = [case for case in map(json.loads, gzip.open(args.cases, "rt")) if len(json.dumps(case)) < LENGTH_MAX]
    cases = short[::len(short) // CASES][:CASES]
    turns = itertools.cycle([1, 2, 3, 4, 5])

    print("| weights | cache | layout | drafts a step: other answers (tokens a step) |")
    print("|---|---|---|---|", flush=True)
    cells, wrong = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for form, cache, layout in itertools.product(*(text.split(",") for text in (args.weights, args.caches, args.layouts))):
            flags = [*weights_of(args.program, form, pathlib.Path(folder)), "--device", "cpu", "--max-num-seqs", "64",
                     "--max-num-batched-tokens", "512", "--kv-cache-dtype", cache, *LAYOUTS[layout].split()]
            exact = "-dcp" not in flags
            plain, _ = answers_of(args.program, flags, cases, exact)
            said = []
            for drafts in [next(turns)] if args.drafts == "turns" else map(int, args.drafts.split(",")):
                config = {"method": "eagle3", "model": args.draft_model, "num_speculative_tokens": drafts, "adaptive": False}
                answers, gave = answers_of(args.program, [*flags, "--speculative-config", json.dumps(config)], cases, exact)
                differ = sum(a != b for a, b in zip(answers, plain))
                said.append(f"{drafts}: {differ} ({gave:.2f})")
                cells, wrong = cells + 1, wrong + differ
            print(f"| {form} | {cache} | {layout} | {', '.join(said)} |", flush=True)
    print(f"\n{cells} cells of {len(cases)} answers, {wrong} other answers")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
