"""Pictures of small bar charts and small tables."""
from data.see_draw import COLORS, NAMES, Canvas, dark_ink, width_of


def bars(rng, hard):
    """(canvas, questions and answers, key): bars from 1 to 9 with a line a unit."""
    count = rng.randint(3, 4) if hard else rng.randint(2, 3)
    unit, size = rng.choice([9, 10, 11, 12, 13] if hard else [12, 13, 14, 15]), rng.randint(13, 17)
    step = rng.randint(24, 32) if hard else rng.randint(28, 44)
    left, top = rng.randint(20, 26), rng.randint(6, 14)
    base = top + 10 * unit
    width, height = min(224, left + count * step + rng.randint(4, 14)), min(224, base + size + rng.randint(8, 14))
    canvas, ink = Canvas(rng, width, height), dark_ink(rng)
    for v in range(11):
        canvas.draw.line((left, base - v * unit, width - 3, base - v * unit), fill=(120, 120, 120) if v in (0, 5, 10) else (205, 205, 205))
        if v in (0, 5, 10):
            canvas.text(str(v), left - 3 - int(width_of(str(v), 13)), min(base - v * unit, height - 8), 13, ink)
    values, colors = [rng.randint(1, 9) for _ in range(count)], rng.sample(list(COLORS), count)
    labels = rng.sample("ABCDEFGHKLMNPRSTUVXYZ", count) if rng.random() < 0.7 else list("ABCDEF"[:count])
    for i, (label, value, color) in enumerate(zip(labels, values, colors)):
        x = left + i * step + step // 2
        box = (x - step * 0.34, base - value * unit, x + step * 0.34, base - 1)
        canvas.draw.rectangle(box, fill=canvas.color(color))
        canvas.mark(box, color)
        canvas.mark((box[0], box[1], box[2], box[1] + 1), f"value {value}")
        canvas.text(label, round(x - width_of(label, size) / 2), base + size // 2 + 4, size, ink)
    asks = [("Name the bars and their values.", ", ".join(f"{label} {value}" for label, value in zip(labels, values)))]
    for word, best in (("highest", max(values)), ("lowest", min(values))):
        if values.count(best) == 1:
            asks.append((f"Which bar is the {word}?", labels[values.index(best)]))
    asks.append(("How many bars are there?", str(count)))
    return canvas, asks, "|".join(f"{a} {b}" for a, b in zip(labels, values))


def table(rng, hard):
    """(canvas, questions and answers, key): a name and a number a row."""
    count = 3 if hard else rng.randint(2, 3)
    names, size = rng.sample(NAMES, count), rng.randint(15, 18) if hard else rng.randint(17, 21)
    cells = [str(rng.randint(1, 99)) for _ in names]
    lines = [list(row) for row in zip(names, cells)]
    gaps, high = rng.randint(8, 14), rng.randint(size + 5, size + 12)
    wide = [int(max(width_of(line[i], size) for line in lines)) + gaps for i in range(len(lines[0]))]
    left, top = rng.randint(3, 10), rng.randint(3, 10)
    width, height = min(224, left + sum(wide) + rng.randint(3, 14)), min(224, top + high * len(lines) + rng.randint(3, 14))
    canvas, ink = Canvas(rng, width, height), dark_ink(rng)
    ruled, at = rng.random() < 0.6, left
    if ruled:
        for i in range(len(lines) + 1):
            canvas.draw.line((left, top + i * high, left + sum(wide), top + i * high), fill=(150, 150, 150))
        for i in range(len(wide) + 1):
            canvas.draw.line((left + sum(wide[:i]), top, left + sum(wide[:i]), top + high * len(lines)), fill=(150, 150, 150))
    for i, w in enumerate(wide):
        for j, line in enumerate(lines):
            canvas.text(line[i], at + gaps // 2, top + j * high + high // 2, size, ink)
        at += w
    asks = [(rng.choice([f"What is the value of {name}?", f"Which value does {name} have?"]), cell) for name, cell in zip(names, cells)]
    asks.append(("Read the names and their values.", ", ".join(f"{name} {cell}" for name, cell in zip(names, cells))))
    asks.append(("How many names are there?", str(count)))
    if cells.count(cells[0]) == 1:
        asks.append((f"Who has the value {cells[0]}?", names[0]))
    return canvas, asks, "|".join(f"{a} {b}" for a, b in zip(names, cells))


def charts(rng, hard):
    return (bars if rng.random() < 0.5 else table)(rng, hard)
