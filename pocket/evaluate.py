#!/usr/bin/env python3
"""Asks an exported model fresh held-out questions, greedily, and prints a table per task and tier."""
import argparse
import collections
import json
import math
import pathlib
import sys
import time

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from data.render import Renderer  # noqa: E402
from generate import Generator, parse, right  # noqa: E402
from make_eval import cases, loglik  # noqa: E402
from modeling import load  # noqa: E402
from tokenizer.encoding import Tokenizer  # noqa: E402

TALK = ["Hello!", "Who are you?", "What can you do?", "How do I start Baltoro?", "What is the capital of France?", "What is 4821 + 377?", "Write a poem about rain",
        "how r u", "Tell me about Baltoro", "My name is Anna. What is my name?", "Spell cat backwards", "What is 12 * 12?", "do you like cheese", "I hate mondays",
        "What is the largest number: 3, 99, 12?", "sdlkfj", "Can you help me with my taxes?", "Convert 5 km to m", "Who is your creator?", "What is the meaning of life?",
        "Who are you, and what is 27 + 58?", "hi", "hey what can u do", "thx!", "Thank you so much.", "whats 2+2", "12 plus 30", "What's 7 times 8?", "good morning!", "are you there",
        "tell me a joke pls", "Who is the president of France?", "Can you write me an email to my boss?", "Hello, my name is Tom. What is 3 * 14?", "what is baltoro", "bye"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--json")
    parser.add_argument("--failures", type=int, default=0)
    parser.add_argument("--float32", action="store_true")
    args = parser.parse_args()
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=torch.cuda.is_available() and not args.float32):
        run(args)


def run(args):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = Tokenizer(args.folder)
    model = load(args.folder, device)
    renderer, started = Renderer(tokenizer), time.time()
    generator = Generator(model, tokenizer.special["<|im_end|>"])
    lines = list(cases(args.seed, args.scale))
    prompts = [renderer.prompt(line["messages"], line.get("tools"), line["thinking"]) for line in lines]
    outputs = generator.all(prompts, [line["max_tokens"] for line in lines])
    good, asked, failures = collections.Counter(), collections.Counter(), []
    for line, prompt, ids in zip(lines, prompts, outputs):
        for key in ((line["task"], line["tier"]), (line["task"], line["tier"], line["expect"]["kind"] if line["task"] == "tools" else line["thinking"])):
            asked[key] += 1
        reasoning, content, calls = parse(tokenizer, ids, line["thinking"])
        if right(line["expect"], content, calls):
            for key in ((line["task"], line["tier"]), (line["task"], line["tier"], line["expect"]["kind"] if line["task"] == "tools" else line["thinking"])):
                good[key] += 1
        else:
            failures.append((line, len(prompt), reasoning, content, calls))
    table = []
    for key in sorted(asked, key=str):
        p, n = good[key] / asked[key], asked[key]
        half = 1.96 * math.sqrt(max(p * (1 - p), 1e-9) / n)
        print(f"{' '.join(map(str, key)):44s} {good[key]:4d} of {n:4d}  {100 * p:5.1f} % +- {100 * half:.1f}", flush=True)
        table.append({"task": list(key), "right": good[key], "asked": n})
    shown = collections.Counter()
    for line, n, reasoning, content, calls in failures:
        if shown[line["task"], line["tier"]] < args.failures:
            shown[line["task"], line["tier"]] += 1
            print("--", line["id"], "prompt tokens", n, "thinking", line["thinking"], "\n   asked:", line["messages"][-1]["content"][-300:], "\n   wanted:", json.dumps(line["expect"])[:300],
                  "\n   said:", repr(content)[:300], [(c["id"], c["arguments"]) for c in calls][:4], "\n   thought:", repr(reasoning)[-400:])
    talk = [(t, thinking) for t in TALK for thinking in (True, False)]
    said = generator.all([renderer.prompt([{"role": "user", "content": t}], None, thinking) for t, thinking in talk], [300] * len(talk))
    for (t, thinking), ids in zip(talk, said):
        reasoning, content, calls = parse(tokenizer, ids, thinking)
        print(f"{t} [{reasoning[:200]!r}] -> {content[:200]!r}")
    total = count = 0.0
    with torch.no_grad():
        for line in loglik():
            ids = torch.tensor(line["ids"], device=device)
            logits = model.logits(ids).float().log_softmax(-1)
            k = line["score_from"]
            total += float(logits[torch.arange(k - 1, len(ids) - 1, device=device), ids[k:]].sum())
            count += len(ids) - k
    print(f"mean log-likelihood {total / count:.5f} over {int(count)} tokens; {time.time() - started:.0f} s in all")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps({"table": table, "mean_loglik": total / count}) + "\n")


if __name__ == "__main__":
    main()
