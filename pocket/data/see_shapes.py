"""Pictures of shapes: what is there, which colour it has, where it lies; and how many there are."""
from data.see_draw import COLORS, KINDS, Canvas

PLURAL = {"circle": "circles", "square": "squares", "triangle": "triangles", "star": "stars", "diamond": "diamonds", "cross": "crosses", "ring": "rings"}


def scatter(rng, canvas, sizes):
    """Centres for squares of these sides that do not touch, or None."""
    placed = []
    for size in sorted(sizes, reverse=True):
        for _ in range(40):
            half = size / 2 + 1
            if 2 * half >= min(canvas.width, canvas.height):
                return None
            x, y = rng.uniform(half, canvas.width - half), rng.uniform(half, canvas.height - half)
            if all(max(abs(x - a), abs(y - b)) > (size + s) / 2 + 2 for a, b, s in placed):
                placed.append((x, y, size))
                break
        else:
            return None
    return placed


def canvas_for(rng, hard):
    low, high = (84, 200) if hard else (70, 168)
    return Canvas(rng, rng.randint(low, high), rng.randint(low, high))


def outstanding(values, margin, largest):
    """The index of the largest (or smallest) value that is so by this margin, or None."""
    order = sorted(range(len(values)), key=lambda i: values[i], reverse=largest)
    return order[0] if len(values) > 1 and abs(values[order[0]] - values[order[1]]) >= margin else None


def shapes(rng, hard):
    """(canvas, questions and answers, key): shapes of kinds and colours that differ."""
    while True:
        canvas = canvas_for(rng, hard)
        count = rng.randint(2, 3) if hard else rng.randint(1, 2)
        placed = scatter(rng, canvas, [rng.uniform(20, 46) if hard else rng.uniform(26, 60) for _ in range(count)])
        if placed:
            break
    placed.sort()
    kinds, colors = rng.sample(KINDS, count), rng.sample(list(COLORS), count)
    for kind, color, (x, y, size) in zip(kinds, colors, placed):
        canvas.shape(kind, color, x, y, size)
    xs, ys, areas = [p[0] for p in placed], [p[1] for p in placed], [p[2] for p in placed]
    asks = []
    if all(b - a >= 9 for a, b in zip(xs, xs[1:])):
        asks.append(("What is in the picture?" if count == 1 else "Name the shapes from left to right.", ", ".join(f"{c} {k}" for k, c in zip(kinds, colors))))
    if count == 1:
        asks += [("Which shape is it?", kinds[0]), ("Which color is it?", colors[0])]
    if hard or count == 1:
        for kind, color in zip(kinds, colors):
            asks.append((rng.choice([f"What is the color of the {kind}?", f"Which color does the {kind} have?"]), color))
            asks.append((rng.choice([f"Which shape is {color}?", f"What is the shape that is {color}?"]), kind))
    for values, margin, largest, word in ((xs, 12, False, "on the left"), (xs, 12, True, "on the right"), (ys, 12, False, "at the top"), (ys, 12, True, "at the bottom"),
                                          (areas, 7, True, "the largest"), (areas, 7, False, "the smallest")):
        i = outstanding(values, margin, largest)
        if i is not None:
            asks.append((f"Which shape is {word}?", kinds[i]))
    key = "|".join(f"{k} {c} {round(x / 14)} {round(y / 14)}" for k, c, (x, y, _) in zip(kinds, colors, placed))
    return canvas, asks, key


def count(rng, hard):
    """(canvas, questions and answers, key): shapes of one kind and colour, or of two."""
    while True:
        canvas = canvas_for(rng, hard)
        number = rng.randint(3, 6) if hard else rng.randint(1, 5)
        size = rng.uniform(15, 26) if hard else rng.uniform(18, 34)
        placed = scatter(rng, canvas, [size * rng.uniform(0.85, 1.15) for _ in range(number)])
        if placed:
            break
    kinds, colors = rng.sample(KINDS, rng.randint(1, 2) if hard else 1), rng.sample(list(COLORS), rng.randint(1, 2) if hard else 1)
    things = [(rng.choice(kinds), rng.choice(colors)) for _ in placed]
    for (kind, color), (x, y, size) in zip(things, placed):
        canvas.shape(kind, color, x, y, size)
    asks = [("How many shapes are there?", str(number))]
    for kind in kinds:
        asks.append((f"How many {PLURAL[kind]} are there?", str(sum(k == kind for k, _ in things))))
    key = "|".join(f"{k} {c} {round(x / 14)} {round(y / 14)}" for (k, c), (x, y, _) in zip(things, placed))
    return canvas, asks, key
