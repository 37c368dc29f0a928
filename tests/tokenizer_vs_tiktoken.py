#!/usr/bin/env python3
"""Compares our tokenizer with tiktoken, id for id, on at least 20 MB of mixed text.

    tests/tokenizer_vs_tiktoken.py DUMP MODEL_DIR [--megabytes N]

DUMP is the program tokenizer_dump, MODEL_DIR holds tiktoken.model and tokenizer_config.json. Needs tiktoken 0.14.0.
The texts are the C headers and the Python library of this machine, Han words out of the vocabulary itself, random
strings from a pool of difficult characters, emoji, long runs, and special tokens; all but the files are seeded.
tiktoken has a newer Unicode than our tables, so random characters are taken from those of Unicode 15.0 and before.
"""
import argparse
import base64
import json
import pathlib
import random
import struct
import subprocess
import sys
import sysconfig
import time
import unicodedata

import tiktoken

UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + "+" + CONTRACTION,
    r"[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER + "*" + CONTRACTION,
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
])
HOSTILE = (list("aZ sStTlLdDrReEvVmM'''  \t\n\n\r0123-_./!<|>[]{}\"") +
           list("\u0301\u0345\u01c5\u02b0\u00aa\u017f\u212a\u3005\u3007\u3021\u2e80\u4e00\u9fa5\u30a2\u3042\u30fc\uac00"
                "\u0085\u000b\u000c\u00a0\u2003\u2028\u3000\u200b\u200d\ufe0f\u2160\u00bd\u0660\u0e01\u0e31\u093f\u0915"
                "\u05d0\u0627\u0416\u0436\u00df\u1e9e\u0130\u0131\ufffd\ue000\u0378\U0001f600\U0001f468\U0001f3fd"
                "\U00020000\U0001d400\U0001d7ce\U000e0100\U00016ff0\U00016fe3"))


def load_reference(model_dir):
    ranks = {}
    for line in (model_dir / "tiktoken.model").read_bytes().splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    named = json.loads((model_dir / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    names = {int(id): token["content"] for id, token in named.items()}
    special = {names.get(i, f"<|reserved_token_{i}|>"): i for i in range(len(ranks), len(ranks) + 256)}
    return tiktoken.Encoding("kimi", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special), ranks, special


def read_files(folder, suffixes, limit):
    total = 0
    for path in sorted(pathlib.Path(folder).rglob("*")):
        if total >= limit:
            return
        if path.suffix not in suffixes or not path.is_file():
            continue
        text = path.read_bytes()[:500_000].decode("utf-8", "replace")
        total += len(text)
        yield text


def assigned_characters():
    """Characters of this Python's Unicode, which must not be newer than our tables."""
    if tuple(map(int, unicodedata.unidata_version.split("."))) > (15, 0, 0):
        database = unicodedata.ucd_3_2_0
    else:
        database = unicodedata
    return [chr(c) for c in range(0x110000) if database.category(chr(c)) not in ("Cn", "Cs")]


def build_texts(ranks, special, megabytes, rng):
    """Yields (kind, text) until `megabytes` is reached; every kind gets its share."""
    share = megabytes * 1_000_000 // 8

    def fill(kind, make):
        total = 0
        while total < share:
            text = make()
            total += len(text.encode())
            yield kind, text

    for text in read_files("/usr/include", {"", ".h", ".hpp"}, 2 * share):
        yield "C++", text
    for text in read_files(sysconfig.get_paths()["stdlib"], {".py", ".txt", ".rst"}, 2 * share):
        yield "Python", text

    han, words = [], []
    for token in ranks:
        try:
            word = token.decode()
        except UnicodeDecodeError:
            continue
        (han if any("\u4e00" <= c <= "\u9fff" for c in word) else words).append(word)
    han = han or [chr(c) for c in range(0x4E00, 0xA000)]  # a small vocabulary may have no such words
    punctuation = list("，。、！？；：“”（）《》\n") + ["。\n\n", " ", "，"]

    def chinese():
        parts = []
        for _ in range(rng.randint(1, 300)):
            parts += rng.choices(han, k=rng.randint(1, 8))
            parts.append(rng.choice(punctuation))
        return "".join(parts)

    yield from fill("Chinese", chinese)
    yield from fill("vocabulary", lambda: "".join(rng.choices(words + han[:20000], k=rng.randint(1, 400))))
    everything = assigned_characters()
    emoji = [c for c in everything if unicodedata.category(c) in ("So", "Sk") and ord(c) > 0x2000]

    def emojis():
        joiners = ["", "", "\u200d", "\ufe0f", "\U0001f3fd", " ", "ok "]
        return "".join(rng.choice(emoji) + rng.choice(joiners) for _ in range(rng.randint(1, 200)))

    yield from fill("emoji", emojis)
    yield from fill("hostile", lambda: "".join(rng.choices(HOSTILE, k=rng.randint(1, 60))))
    yield from fill("any character", lambda: "".join(rng.choices(everything, k=rng.randint(1, 200))))

    def near_specials():
        names = list(special)
        return "".join(rng.choice([rng.choice(names), rng.choice(names)[:-1], "<|", "hi", "\n", "[", "é"])
                       for _ in range(rng.randint(1, 40)))

    yield from fill("specials", near_specials)
    for char in [chr(c) for c in range(128)] + ["中", "é", "😀", "\u0301", "あ", "ab", "ab ", " \n", "<|", "'s"]:
        for length in (1, 2, 7, 100, 1000, 20_000):
            yield "runs", char * length


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dump")
    parser.add_argument("model_dir", type=pathlib.Path)
    parser.add_argument("--megabytes", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    reference, ranks, special = load_reference(options.model_dir)
    texts = list(build_texts(ranks, special, options.megabytes, random.Random(options.seed)))
    encoded = [text.encode() for _, text in texts]
    stream = b"".join(struct.pack("<I", len(data)) + data for data in encoded)
    size = sum(map(len, encoded))
    differing = 0
    for mode, encode in (("ordinary", reference.encode_ordinary),
                         ("specials", lambda text: reference.encode(text, allowed_special="all"))):
        started = time.monotonic()
        flags = ["--specials"] if mode == "specials" else []
        ours = subprocess.run([options.dump, str(options.model_dir), *flags], input=stream, stdout=subprocess.PIPE,
                              check=True).stdout
        ours_s = time.monotonic() - started
        at = tokens = 0
        for kind, text in texts:
            (count,) = struct.unpack_from("<I", ours, at)
            got = struct.unpack_from(f"<{count}i", ours, at + 4)
            at += 4 + 4 * count
            want = tuple(encode(text))
            tokens += count
            if got == want:
                continue
            differing += 1
            if differing <= 10:
                i = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
                around = reference.decode_bytes(list(want[max(0, i - 2):i + 4]))
                print(f"{mode}, {kind}: token {i}: ours {got[i:i + 4]}, tiktoken {want[i:i + 4]}, near {around!r}")
        if at != len(ours):
            sys.exit("the dump has more records than there were texts")
        print(f"{mode}: {len(texts)} texts, {size / 1e6:.1f} MB, {tokens} tokens; ours {ours_s:.1f} s with loading")
    if size < 20_000_000:
        sys.exit(f"only {size} bytes of text, 20 MB are wanted")
    if differing:
        sys.exit(f"{differing} texts differ")
    print("equal to tiktoken", tiktoken.__version__)


if __name__ == "__main__":
    main()
