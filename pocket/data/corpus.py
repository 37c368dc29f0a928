"""The text that the vocabulary is learnt from: what the generators write, weighted by how often it is written."""
import random

from data import mix
from data.render import sorted_keys, tools_typescript


def texts_of(case):
    if case.tools:
        yield tools_typescript(sorted_keys(case.tools))
    for m in case.messages:
        yield m.get("content") or ""
        yield m.get("reasoning_content") or ""
        for call in m.get("tool_calls") or ():
            yield call["id"]
            yield call["function"]["arguments"]


def tokenizer_texts(count=30000, seed=20261121):
    rng = random.Random(seed)
    cases = mix.stream(rng)
    for _ in range(count):
        case = next(cases)
        if case.task != "retrieval" or rng.random() < 0.15:  # long, and nearly all made-up words
            yield from texts_of(case)
