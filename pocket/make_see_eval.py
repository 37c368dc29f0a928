#!/usr/bin/env python3
"""Writes eval/see.jsonl.gz: held-out questions about pictures, as requests of the chat API with the pictures in them."""
import base64
import gzip
import io
import json
import pathlib
import random
import sys

from PIL import Image

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from data import see_mix  # noqa: E402

COUNTS = {"easy": 60, "hard": 40}


def url(canvas):
    """As a PNG of 24 colours: few, and small."""
    out = io.BytesIO()
    canvas.image.quantize(24, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(out, "png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


def cases(seed=7, scale=1.0):
    """Lines of the file."""
    for task in see_mix.TASKS:
        for tier, count in COUNTS.items():
            rng = random.Random(f"{seed} {task} {tier}")
            for number in range(int(count * scale)):
                case = see_mix.question(rng, task, int(tier == "hard"))
                parts = [{"type": "image_url", "image_url": {"url": url(part["canvas"])}} if part["type"] == "image" else part for part in case.messages[0]["content"]]
                yield {"id": f"{task}-{tier}-{number:03d}", "task": task, "tier": tier, "thinking": False,
                       "messages": [{"role": "user", "content": parts}], "max_tokens": 64, "expect": case.expect}


def main():
    text = "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in cases()).encode()
    out = pathlib.Path(__file__).resolve().parent / "eval/see.jsonl.gz"
    print(out.name, out.write_bytes(gzip.compress(text, 9, mtime=0)), "bytes")


if __name__ == "__main__":
    main()
