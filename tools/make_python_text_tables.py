#!/usr/bin/env python3
"""Writes src/text/python_text_tables.inc: what Python's str.upper, lower, title and isprintable know of Unicode.

A run {first, last, step, delta} says: code points first, first+step .. last map to themselves plus delta.
What maps to several code points is listed on its own.
"""
import pathlib
import sys
import unicodedata

OUT = pathlib.Path(__file__).resolve().parent.parent / "src/text/python_text_tables.inc"
CODES = [c for c in range(0x80, 0x110000) if not 0xD800 <= c <= 0xDFFF]


def runs(pairs):
    """Greedy runs of equal delta and one step (1 or 2) over sorted (code, target) pairs."""
    out = []
    for code, target in pairs:
        delta = target - code
        if out:
            first, last, step, known = out[-1]
            gap = code - last
            if known == delta and gap <= 2 and (step == gap or first == last):
                out[-1] = (first, code, gap, delta)
                continue
        out.append((code, code, 1, delta))
    return out


def table(name, mapped):
    simple = [(c, ord(t)) for c, t in mapped if len(t) == 1]
    special = [(c, [ord(x) for x in t] + [0] * (3 - len(t))) for c, t in mapped if len(t) > 1]
    lines = [f"constexpr CaseRun k{name}Runs[] = {{"]
    lines += [f"    {{0x{a:X}, 0x{b:X}, {s}, {d}}}," for a, b, s, d in runs(simple)]
    lines += ["};", f"constexpr CaseSpecial k{name}Specials[] = {{"]
    lines += [f"    {{0x{c:X}, {{0x{t[0]:X}, 0x{t[1]:X}, 0x{t[2]:X}}}}}," for c, t in special]
    return [*lines, "};", ""]


def main():
    upper = [(c, chr(c).upper()) for c in CODES if chr(c).upper() != chr(c)]
    lower = [(c, chr(c).lower()) for c in CODES if chr(c).lower() != chr(c)]
    title = [(c, chr(c).title()) for c in CODES if chr(c).title() != chr(c).upper()]
    hidden = []
    for code in range(0x7F, 0x110000):
        if not chr(code).isprintable():
            if hidden and hidden[-1][1] == code - 1:
                hidden[-1][1] = code
            else:
                hidden.append([code, code])
    lines = ["// Made by tools/make_python_text_tables.py from Unicode " + unicodedata.unidata_version + ".", ""]
    lines += table("Upper", upper) + table("Lower", lower)
    lines += ["// Only where the title case is not the upper case."] + table("Title", title)
    lines += ["constexpr CodeRange kNotPrintable[] = {"]
    lines += [f"    {{0x{a:X}, 0x{b:X}}}," for a, b in hidden] + ["};"]
    OUT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
