#!/usr/bin/env python3
"""Writes the held-out questions: pocket/eval/cases.jsonl.gz and pocket/eval/loglik.jsonl.gz (seeded, reproducible)."""
import gzip
import json
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from data import mix  # noqa: E402
from data.common import BEYOND, EASY, HARD  # noqa: E402
from data.render import Renderer  # noqa: E402
from tokenizer.encoding import Tokenizer  # noqa: E402

# family -> (easy cases, hard cases)
COUNTS = {"chat": (100, 0), "arithmetic": (200, 100), "arithmetic-instant": (120, 80), "transform": (200, 100), "dates-units": (150, 80),
          "memory": (130, 46), "retrieval": (70, 23), "tools": (100, 40), "system": (100, 60), "json": (100, 60),
          "first-words": (100, 0), "first-tools": (60, 0)}
# Where the hard cases of training are nearly all answered right, this share of the hard tier lies beyond them.
HARDEST = {"arithmetic": 0.5, "dates-units": 0.6, "memory": 0.5, "retrieval": 1.0, "tools": 1.0, "system": 0.5, "json": 1.0, "transform": 0.5}


def question(rng, family, hard):
    """(the request's messages, the turn that is asked for, case): one turn of the case's last stretch."""
    case = mix.draw_held_out(rng, family, hard)
    last_user = max(i for i, m in enumerate(case.messages) if m["role"] == "user")
    turns = [i for i in range(last_user + 1, len(case.messages)) if case.messages[i]["role"] == "assistant"]
    at = turns[0] if rng.random() < 0.6 else rng.choice(turns)
    return case.messages[:at], case.messages[at], case


def expected(turn, case):
    if turn.get("tool_calls"):
        return {"kind": "tool_calls", "calls": [{"name": c["function"]["name"], "arguments": json.loads(c["function"]["arguments"])}
                                                for c in turn["tool_calls"]]}
    return case.expect


def cases(seed=7, scale=1.0):
    """Lines for cases.jsonl.gz, each with the reference answer beside it."""
    renderer = Renderer(Tokenizer())
    for family, counts in COUNTS.items():
        for tier, level, count in (("easy", EASY, counts[0]), ("hard", HARD, counts[1])):
            rng = random.Random(f"{seed} {family} {tier}")
            seen = set()
            number = 0
            while number < int(count * scale):
                messages, turn, case = question(rng, family, BEYOND if level == HARD and rng.random() < HARDEST.get(family, 0) else level)
                if (case.key, len(messages)) in seen and rng.random() < 0.98:
                    continue
                seen.add((case.key, len(messages)))
                length = len(renderer.tokenizer.encode((turn.get("reasoning_content") or "") + (turn["content"] or ""))) + sum(
                    len(renderer.tokenizer.encode(c["function"]["arguments"])) + 24 for c in turn.get("tool_calls") or ())
                line = {"id": f"{family}-{tier}-{number:03d}", "task": family, "tier": tier, "thinking": case.thinking, "messages": messages}
                if case.tools:
                    line["tools"] = case.tools
                line["max_tokens"] = 32 * ((length + 60) * 5 // 4 // 32 + 1)
                line["expect"] = expected(turn, case)
                yield line
                number += 1


def loglik(count=100, seed=11):
    """Held-out conversations: the prompt's ids and the answer's, which begin at score_from."""
    renderer = Renderer(Tokenizer())
    rng = random.Random(seed)
    names = list(mix.FAMILIES)
    number = 0
    while number < count:
        family = names[number % len(names)]
        case = mix.draw_held_out(rng, family, rng.random() < 0.3)
        ids, _ = renderer.training(case)
        if len(ids) > 900:
            continue
        start = len(renderer.prompt(case.messages[:-1], case.tools, case.thinking))
        yield {"id": f"loglik-{number:03d}", "task": family, "ids": ids, "score_from": start}
        number += 1


def main():
    out = pathlib.Path(__file__).resolve().parent / "eval"
    out.mkdir(exist_ok=True)
    for name, lines in (("cases.jsonl.gz", cases()), ("loglik.jsonl.gz", loglik())):
        text = "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines).encode()
        written = (out / name).write_bytes(gzip.compress(text, 9, mtime=0))
        print(name, written, "bytes")


if __name__ == "__main__":
    main()
