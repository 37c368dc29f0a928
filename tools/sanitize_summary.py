#!/usr/bin/env python3
"""The table of what compute-sanitizer said: sanitize_summary.py FOLDER, which holds the logs of sanitize_gpu.sh.

A race of two source lines that sanitize_known.txt explains is counted, not an error. Before the table come the lines that it
does not explain, in its form. Exits with 1 if there are any, if a run has not ended or its case failed, and if an entry of
the list is about lines that the sources no longer have. Without FOLDER only the list is looked at.
"""
import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
KNOWN = ROOT / "tools" / "sanitize_known.txt"
# "Error: Race reported between Write access at f(int)+0x10 in a.cu:12", then a line for each access against it.
ACCESS = re.compile(r"(?:Read|Write) access at (?P<function>.*?)(?:\+0x[0-9a-f]+)?"
                    r"(?: in (?P<file>[^\s:]+):(?P<line>\d+))?(?: \[(?P<count>\d+) hazards?\])?\s*$")


def source_lines():
    """File name -> list of its lines, stripped."""
    lines = {}
    for folder in ("src", "tests"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".cu", ".cuh", ".h", ".cc"):
                lines[path.name] = [line.strip() for line in path.read_text().splitlines()]
    return lines


def known_pairs(sources, problems):
    """(program, frozenset of two "file | text") of every pair that the list explains."""
    pairs = set()
    for block in re.split(r"\n\s*\n", KNOWN.read_text().strip()):
        lines = [line.strip() for line in block.splitlines()]
        reason = [line for line in lines if line.startswith("#")]
        lines = [line for line in lines if not line.startswith("#")]
        if not lines:
            continue  # the head of the file
        if not reason:
            problems.append(f"{KNOWN.name}: an entry without a reason: {lines[0]}")
        if "against" not in lines:
            problems.append(f"{KNOWN.name}: an entry without 'against': {lines[0]}")
            continue
        program, at = lines[0], lines.index("against")
        for place in lines[1:at] + lines[at + 1:]:
            file, _, text = place.partition(" | ")
            if text not in sources.get(file, []):
                problems.append(f"{KNOWN.name}: the sources no longer have: {place}")
        for one in lines[1:at]:
            pairs.update((program, frozenset((one, other))) for other in lines[at + 1:])
    return pairs


class Run:
    def __init__(self, path, sources):
        self.errors = self.hazards = 0
        self.pairs = collections.Counter()  # frozenset of places -> hazards
        self.places = collections.Counter()  # of errors that are no races
        self.faults = []
        self.sources = sources
        text = path.read_text(errors="replace")
        # Its last line. The logs' names hold the same, but a case may contain a dash.
        head = re.search(r"^# run: (\S+) (\S+) (\S+) (\S+): status (\d+), (\d+) s$", text, re.M)
        if not head:
            self.tool, self.program, self.case, self.seconds = path.stem.split("-")[0], "?", path.stem, 0
            self.faults.append("no end of the log")
            return
        self.tool, self.program, self.case = head.group(1, 2, 3)
        if head.group(4) != "-":
            self.case += f" ({head.group(4)})"
        self.seconds = int(head.group(6))
        self.read(text)

    def place(self, access):
        if access["file"] is None:
            return access["function"]
        lines = self.sources.get(access["file"], [])
        number = int(access["line"])
        text = lines[number - 1] if 0 < number <= len(lines) else f"line {number}"
        return f"{access['file']} | {text}"

    def read(self, text):
        first = None
        for line in text.splitlines():
            if not line.startswith("====="):
                continue
            line = line.lstrip("=").strip()
            race = re.match(r"(?:error|warning|info): race reported between (.*)", line, re.I)
            against = re.match(r"and ((?:Read|Write) access .*)", line)
            if race:
                access = ACCESS.match(race.group(1))
                first = self.place(access) if access else race.group(1)
            elif against and first is not None:
                access = ACCESS.match(against.group(1))
                other = self.place(access) if access else against.group(1)
                count = int(access["count"] or 1) if access else 1
                self.hazards += count
                self.pairs[frozenset((first, other))] += count
            elif re.match(r"(error|warning|fatal|internal)\b.*", line, re.I) and "SUMMARY" not in line:
                self.faults.append(line[:160])
            else:
                at = re.match(r"at .*? in (?P<file>[^\s:]+):(?P<line>\d+)", line)
                if at:
                    self.places[self.place({**at.groupdict(), "function": ""})] += 1
        summary = re.search(r"ERROR SUMMARY: (\d+) error", text)
        races = re.search(r"RACECHECK SUMMARY: (\d+) hazards? displayed \((\d+) errors?, (\d+) warnings?\)", text)
        if races:
            shown, errors, warnings = map(int, races.groups())
            self.errors = errors + warnings
            if shown < self.errors:
                self.faults.append(f"{self.errors - shown} reports were not printed")
            if self.errors > 0 and not self.pairs:
                self.faults.append("races that this program could not read")
        elif summary:
            self.errors = int(summary.group(1))
            if self.errors > 0:
                self.faults.append(f"{self.errors} errors")
        else:
            last = [line for line in text.splitlines() if line.strip() and not line.startswith("#")][-1:]
            self.faults.append("no summary, last: " + "".join(last)[:60])
        cases = re.search(r"^(\d+) of (\d+) cases failed", text, re.M)
        if cases is None or cases.group(1) != "0" or cases.group(2) == "0":
            self.faults.append("case: " + (cases.group(0) if cases else "no result"))


def table(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.rjust(w) if i in (2, 3, 4, 5, 6) else cell.ljust(w)
                        for i, (cell, w) in enumerate(zip(row, widths))).rstrip())


def main():
    problems = []
    sources = source_lines()
    known = known_pairs(sources, problems)
    runs = [Run(path, sources) for path in sorted(pathlib.Path(sys.argv[1]).glob("*.txt"))] if sys.argv[1:] else []
    good, bad = [], []
    new_pairs = collections.defaultdict(collections.Counter)
    for run in runs:
        new = [pair for pair in run.pairs if (run.program, pair) not in known]
        for pair in new:
            new_pairs[run.program][pair] += run.pairs[pair]
        if run.places:
            print(f"{run.tool} {run.program} {run.case}:")
            for place, count in run.places.most_common(20):
                print(f"  {count} at {place}")
        (bad if new or run.faults else good).append((
            f"{run.program} {run.case}", run.tool, str(run.seconds), str(run.errors), str(run.hazards),
            str(len(run.pairs) or len(run.places)), str(len(new)),
            "; ".join(run.faults[:3]) or ("NEW" if new else "ok")))
    for program, pairs in new_pairs.items():
        for pair, count in pairs.most_common():
            places = sorted(pair)
            print(f"# {count} hazards, not explained\n{program}\n{places[0]}\nagainst\n{places[-1]}\n")
    for problem in problems:
        print(problem)
    if runs:
        table([("test", "tool", "s", "errors", "hazards", "line pairs", "new", ""), *good, *bad])
        print(f"{len(runs)} runs, {len(bad)} bad; {sum(map(len, new_pairs.values()))} new line pairs; "
              f"{len(problems)} wrong entries in {KNOWN.name}")
    sys.exit(bool(bad or problems or (sys.argv[1:] and not runs)))


main()
