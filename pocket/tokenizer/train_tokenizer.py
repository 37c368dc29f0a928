#!/usr/bin/env python3
"""Trains the pocket model's byte pair vocabulary and writes it in the tiktoken format.

    python3 pocket/tokenizer/train_tokenizer.py [--corpus FILE] [--out pocket/model]

Without --corpus the text is what the data generators write (fixed seed), so the vocabulary is
reproducible from this repository alone. Words are weighted by their count. Digits never join:
every number is read digit by digit, which is what makes column-wise arithmetic learnable.
"""
import argparse
import base64
import collections
import json
import pathlib
import sys

import regex

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from tokenizer.encoding import PATTERN, BytePairs, SPECIAL_COUNT, special_names  # noqa: E402

ORDINARY = 2048


def byte_order():
    """The 256 single bytes, the printable ones first (the family's own order)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return printable + [b for b in range(256) if b not in set(printable)]


def count_pieces(texts):
    counts = collections.Counter()
    split = regex.compile(PATTERN, regex.V1)
    for text in texts:
        counts.update(split.findall(text))
    return counts


def learn(counts, ordinary):
    """Greedy byte pair merging. Pairs are counted by what they concatenate to, so that no byte
    string can become a token twice, and a token's rank says when it was learnt."""
    tokens = [bytes([b]) for b in byte_order()]
    words = []
    for piece, n in counts.items():
        raw = piece.encode()
        if len(raw) > 1 and not any(c.isnumeric() for c in piece):
            # Made-up words come once or twice; real ones must not drown in them.
            words.append(([raw[i:i + 1] for i in range(len(raw))], 4 * n if n > 4 else n))
    totals = collections.Counter()
    where = collections.defaultdict(set)

    def tally(index, sign):
        parts, n = words[index]
        for left, right in zip(parts, parts[1:]):
            totals[left + right] += sign * n
            where[left + right].add(index)

    for index in range(len(words)):
        tally(index, 1)
    while len(tokens) < ordinary:
        best = max(totals.items(), key=lambda kv: (kv[1], kv[0]))
        if best[1] < 2:
            break
        joined = best[0]
        tokens.append(joined)
        for index in list(where[joined]):
            parts, n = words[index]
            tally(index, -1)
            merged, i = [], 0
            while i < len(parts):
                if i + 1 < len(parts) and parts[i] + parts[i + 1] == joined:
                    merged.append(joined)
                    i += 2
                else:
                    merged.append(parts[i])
                    i += 1
            words[index] = (merged, n)
            tally(index, 1)
        totals.pop(joined, None)
        where.pop(joined, None)
        totals += collections.Counter()  # drops what fell to zero
    return tokens


def tokenizer_config(base):
    added = {}
    for offset, (name, special) in sorted(special_names().items()):
        added[str(base + offset)] = {"content": name, "lstrip": False, "normalized": False,
                                     "rstrip": False, "single_word": False, "special": special}
    framing = ("[BOS]", "[EOS]", "[UNK]", "[PAD]")
    extra = [name for _, (name, special) in sorted(special_names().items())
             if special and name not in framing]
    return {"added_tokens_decoder": added, "additional_special_tokens": extra,
            "bos_token": "[BOS]", "clean_up_tokenization_spaces": False, "eos_token": "[EOS]",
            "extra_special_tokens": {}, "model_max_length": 262144, "pad_token": "[PAD]",
            "tokenizer_class": "TikTokenTokenizer", "unk_token": "[UNK]"}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--corpus")
    parser.add_argument("--out", default=str(pathlib.Path(__file__).resolve().parents[1] / "model"))
    args = parser.parse_args()
    if args.corpus:
        texts = pathlib.Path(args.corpus).read_text(errors="replace").split("\n\n")
    else:
        from data.corpus import tokenizer_texts
        texts = tokenizer_texts()
    tokens = learn(count_pieces(texts), ORDINARY)
    if len(tokens) != ORDINARY:
        sys.exit(f"the text holds only {len(tokens)} tokens, {ORDINARY} are needed")
    pairs = BytePairs({token: rank for rank, token in enumerate(tokens)})
    for token in tokens:
        if pairs.merge(token) != [pairs.ranks[token]]:
            sys.exit(f"token {token!r} cannot be reached by merging")
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    with open(out / "tiktoken.model", "w", encoding="ascii") as f:
        for rank, token in enumerate(tokens):
            f.write(f"{base64.b64encode(token).decode()} {rank}\n")
    with open(out / "tokenizer_config.json", "w", encoding="utf-8") as f:
        json.dump(tokenizer_config(ORDINARY), f, indent=2)
        f.write("\n")
    print(f"{len(tokens)} ordinary tokens, {SPECIAL_COUNT} special ones -> {out}")


if __name__ == "__main__":
    main()
