"""Drawing for the picture tasks: a canvas that remembers what it shows and where.

Everything is drawn with Pillow, whose built-in font needs no file. What a canvas remembers is only used in training: `marks`,
(x, y, x, y, class), say that the patches whose middle lies in this box show something of this class; `writing` has each text
with its left end, the middle of its height and its size.
"""
import functools
import math

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from data.common import FIRST_NAMES

PATCH, SIDE = 14, 28  # pixels of a patch and of a token, each a square

COLORS = {"red": (220, 30, 30), "blue": (30, 60, 220), "green": (30, 160, 50), "yellow": (245, 220, 20), "orange": (250, 140, 20), "purple": (130, 40, 170),
          "black": (15, 15, 15), "brown": (120, 70, 30), "pink": (250, 150, 190), "grey": (140, 140, 140)}
KINDS = ["circle", "square", "triangle", "star", "diamond", "cross", "ring"]
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-"
CLASSES = {name: i for i, name in enumerate([*LETTERS, *KINDS, *COLORS, *(f"value {v}" for v in range(1, 10))])}
NAMES = sorted(name for name in FIRST_NAMES if len(name) <= 4)


@functools.lru_cache(None)
def font(size):
    return ImageFont.load_default(size)


@functools.lru_cache(None)
def advances(size):
    return {c: font(size).getlength(c) for c in LETTERS + " .:"}


def width_of(text, size):
    return sum(advances(size)[c] for c in text)


class Canvas:
    def __init__(self, rng, width, height, dark=False):
        self.rng, self.width, self.height = rng, width, height
        low, high = (20, 60) if dark else (226, 255)
        self.image = Image.new("RGB", (width, height), tuple(rng.randint(low, high) for _ in range(3)))
        self.draw = ImageDraw.Draw(self.image)
        self.marks, self.writing = [], []

    def color(self, name):
        return tuple(min(255, max(0, c + self.rng.randint(-12, 12))) for c in COLORS[name])

    def shape(self, kind, color, x, y, size):
        """Centre and the side of the square around it."""
        r, draw, paint = size / 2, self.draw, self.color(color)
        box = (x - r, y - r, x + r, y + r)
        if kind == "circle":
            draw.ellipse(box, fill=paint)
        elif kind == "ring":
            draw.ellipse(box, outline=paint, width=max(3, int(size / 5)))
        elif kind == "square":
            draw.rectangle((x - 0.85 * r, y - 0.85 * r, x + 0.85 * r, y + 0.85 * r), fill=paint)
        elif kind == "cross":
            t = r / 3.2
            draw.rectangle((x - t, y - r, x + t, y + r), fill=paint)
            draw.rectangle((x - r, y - t, x + r, y + t), fill=paint)
        else:
            draw.polygon([(x + px * r, y + py * r) for px, py in POINTS[kind]], fill=paint)
        self.mark(box, kind)
        self.mark(box, color)

    def text(self, text, x, y, size, fill):
        """The left end and the middle of the line's height."""
        self.draw.text((x, y), text, font=font(size), fill=fill, anchor="lm")
        self.writing.append((text, x, y, size))
        at = x
        for c in text:
            wide = advances(size)[c]
            if c in CLASSES:
                self.marks.append((at + wide / 2, y, at + wide / 2, y, CLASSES[c]))
            at += wide

    def mark(self, box, name):
        self.marks.append((*box, CLASSES[name]))

    def pixels(self):
        return np.asarray(self.image)

    def grid(self):
        """Rows and columns of patches: whole tokens, filled up with black."""
        return -(-self.height // SIDE) * 2, -(-self.width // SIDE) * 2

    def tokens(self):
        rows, columns = self.grid()
        return rows * columns // 4


def _star():
    return [((1 if i % 2 == 0 else 0.42) * math.sin(math.pi * i / 5), -(1 if i % 2 == 0 else 0.42) * math.cos(math.pi * i / 5)) for i in range(10)]


POINTS = {"triangle": [(0, -0.95), (1, 0.85), (-1, 0.85)], "diamond": [(0, -1), (0.75, 0), (0, 1), (-0.75, 0)], "star": _star()}


def dark_ink(rng):
    return tuple(rng.randint(0, 90) for _ in range(3))


def light_ink(rng):
    return tuple(rng.randint(210, 255) for _ in range(3))


def patches_of(pixels):
    """([patches, 588], [patches, 2]): each patch as channels, lines, columns, and its row and column. The four patches of a
    token follow each other, tokens in the order of rows."""
    rows, columns = (-(-side // SIDE) * 2 for side in pixels.shape[:2])
    full = np.zeros((rows * PATCH, columns * PATCH, 3), np.uint8)
    full[:pixels.shape[0], :pixels.shape[1]] = pixels
    cut = full.reshape(rows // 2, 2, PATCH, columns // 2, 2, PATCH, 3).transpose(0, 3, 1, 4, 6, 2, 5)
    places = np.indices((rows, columns), np.uint8).reshape(2, rows // 2, 2, columns // 2, 2).transpose(1, 3, 2, 4, 0)
    return cut.reshape(rows * columns, 3 * PATCH * PATCH), places.reshape(rows * columns, 2)


def patch_at(x, y, columns):
    """In the order of patches_of."""
    row, column = int(y // PATCH), int(x // PATCH)
    return (row // 2 * (columns // 2) + column // 2) * 4 + row % 2 * 2 + column % 2


def written_patches(writing, encode, length_of, rows, columns):
    """Pairs of a patch and a token: where the middle of each token of each text lies. length_of: letters of a token."""
    out = []
    for text, x, y, size in writing:
        at = 0
        for token in encode(text):
            left = x + width_of(text[:at], size)
            at += length_of(token)
            middle = (left + x + width_of(text[:at], size)) / 2
            if middle < columns * PATCH and y < rows * PATCH:
                out.append((patch_at(middle, y, columns), token))
    return out


def marked_patches(marks, rows, columns):
    """Pairs of a patch, in the order of patches_of, and a class."""
    out = set()
    for x0, y0, x1, y1, what in marks:
        if x1 - x0 < PATCH or y1 - y0 < PATCH:  # small: where its middle is
            x0 = x1 = ((x0 + x1) // (2 * PATCH) + 0.5) * PATCH
            y0 = y1 = ((y0 + y1) // (2 * PATCH) + 0.5) * PATCH
        first, last = math.ceil((x0 - PATCH / 2) / PATCH), math.floor((x1 - PATCH / 2) / PATCH)
        top, bottom = math.ceil((y0 - PATCH / 2) / PATCH), math.floor((y1 - PATCH / 2) / PATCH)
        for row in range(max(top, 0), min(bottom, rows - 1) + 1):
            for column in range(max(first, 0), min(last, columns - 1) + 1):
                token = row // 2 * (columns // 2) + column // 2
                out.add((token * 4 + row % 2 * 2 + column % 2, what))
    return out
