"""Pictures of writing: digits, made-up words, codes, short lines."""
from data.common import word
from data.see_draw import Canvas, dark_ink, light_ink, width_of


def piece(rng, hard):
    kind = rng.random()
    if kind < 0.4:
        return "".join(rng.choice("0123456789") for _ in range(rng.randint(4, 6) if hard else rng.randint(1, 5)))
    if kind < 0.5:
        return rng.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") + rng.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") + "-" + str(rng.randint(10, 999 if hard else 99))
    text = word(rng, 1, 3) if hard else word(rng, 1, 2)
    while len(text) > (8 if hard else 6):
        text = word(rng, 1, 2)
    return text.capitalize() if rng.random() < 0.25 else text


def text(rng, hard):
    """(canvas, questions and answers, key)"""
    lines = [piece(rng, hard) for _ in range(rng.randint(1, 2) if hard else 1)]
    if hard and len(lines) == 1 and rng.random() < 0.4:
        lines[0] += " " + piece(rng, False)
    size = rng.randint(18, 24) if hard else rng.randint(20, 30)
    wide = max(width_of(line, size) for line in lines)
    while wide > 212:
        size -= 1
        wide = max(width_of(line, size) for line in lines)
    high = size * 1.25 * len(lines)
    width, height = min(224, max(56, int(wide + rng.randint(8, 70)))), min(224, max(40, int(high + rng.randint(6, 70))))
    dark = rng.random() < 0.2
    canvas = Canvas(rng, width, height, dark)
    ink = light_ink(rng) if dark else dark_ink(rng)
    top = rng.uniform(2, height - high - 2)
    left = rng.uniform(3, max(3.5, width - wide - 3))
    for i, line in enumerate(lines):
        canvas.text(line, round(left), round(top + size * 1.25 * (i + 0.5)), size, ink)
    asks = [(rng.choice(["What does the picture say?", "What is written in the picture?", "Read the text in the picture."]), "\n".join(lines))]
    if len(lines) == 1 and lines[0].isdigit():
        asks.append(("Which number is in the picture?", lines[0]))
    if len(lines) > 1:
        asks.append(("What is the first line?", lines[0]))
        asks.append(("What is the last line?", lines[-1]))
        asks.append(("How many lines are there?", str(len(lines))))
    return canvas, asks, "\n".join(lines)
