#!/usr/bin/env python3
"""The table of what compute-sanitizer said: sanitize_summary.py FOLDER, which holds the logs of sanitize_gpu.sh.

A race of two source lines that sanitize_known.txt explains is counted, not an error; nor is one inside a kernel of cuBLASLt,
which is listed apart. Before the table come the lines that the list does not explain, in its form, and the entries that no run
needed. Exits with 1 if there are any of the former, if a run has not ended or its case failed, and if an entry of the list is
about lines that the sources no longer have. Without FOLDER only the list is looked at.
"""
import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
KNOWN = ROOT / "tools" / "sanitize_known.txt"
# "Error: Race reported between Write access at f(int)+0x10 in a.cu:12", then a line for each access against it.
ACCESS = re.compile(r"(?:Read|Write) access at (?P<function>.*?)(?:\+0x(?P<offset>[0-9a-f]+))?"
                    r"(?: in (?P<file>[^\s:]+):(?P<line>\d+))?(?: \[(?P<count>\d+) hazards?\])?\s*$")
# Kernels of cuBLASLt have no lines.
LIBRARY = re.compile(r"(?:void )?(?:nvjet_|cutlass|cublas|splitKreduce|gemvx?::)")


class Race:
    """Two accesses that racecheck says are not ordered."""

    def __init__(self, severity, one, other, distance):
        self.severity, self.places, self.distance = severity, frozenset((one, other)), distance

    def key(self):
        return self.severity, self.places, self.distance

    def in_library(self):
        return all(LIBRARY.match(place) for place in self.places)


class Known:
    """An entry of sanitize_known.txt."""

    def __init__(self, head, pairs):
        programs, *conditions = [part.strip() for part in head.split("|")]
        self.head, self.pairs, self.used = head, pairs, 0
        self.programs = programs.split()
        self.case = self.severity = self.distance = None
        for condition in conditions:
            word, _, value = condition.partition(" ")
            if word == "case":
                self.case = value
            elif word == "warning":
                self.severity = word
            elif word == "within":
                self.distance = int(value, 16)
            else:
                raise SystemExit(f"{KNOWN.name}: unknown condition: {condition}")

    def explains(self, program, case, race):
        return (program in self.programs and race.places in self.pairs and
                (self.case is None or case.startswith(self.case)) and
                (self.severity is None or race.severity == self.severity) and
                (self.distance is None or (race.distance is not None and race.distance <= self.distance)))


def source_lines():
    """File name -> list of its lines, stripped."""
    lines = {}
    for folder in ("src", "tests"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".cu", ".cuh", ".h", ".cc"):
                lines[path.name] = [line.strip() for line in path.read_text().splitlines()]
    return lines


def known_entries(sources, problems):
    entries = []
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
        at = lines.index("against")
        for place in lines[1:at] + lines[at + 1:]:
            file, bar, text = place.partition(" | ")
            # Of some accesses the tool names the kernel alone.
            kernel = re.search(r"(\w+)(?:<[^()]*>)?\(", place)
            there = text in sources.get(file, []) if bar else kernel and any(
                kernel.group(1) in line for lines_of in sources.values() for line in lines_of)
            if not there:
                problems.append(f"{KNOWN.name}: the sources no longer have: {place}")
        entries.append(Known(lines[0], {frozenset((one, other)) for one in lines[1:at] for other in lines[at + 1:]}))
    return entries


class Run:
    def __init__(self, path, sources):
        self.errors = self.hazards = 0
        self.races = {}  # key of a race -> it and its hazards
        self.places = collections.Counter()  # of errors that are no races
        self.faults = []
        self.sources, self.steps = sources, ""
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

    def access(self, text):
        """Place, offset in the code, hazards."""
        access = ACCESS.match(text)
        if not access:
            return text, None, 1
        offset = None if access["offset"] is None else int(access["offset"], 16)
        return self.place(access), offset, int(access["count"] or 1)

    def read(self, text):
        first = None
        for line in text.splitlines():
            if not line.startswith("====="):
                continue
            line = line.lstrip("=").strip()
            race = re.match(r"(error|warning|info): race reported between (.*)", line, re.I)
            against = re.match(r"and ((?:Read|Write) access .*)", line)
            if race:
                severity, first = race.group(1).lower(), self.access(race.group(2))
            elif against and first is not None:
                other = self.access(against.group(1))
                distance = None if None in (first[1], other[1]) else abs(first[1] - other[1])
                found = Race(severity, first[0], other[0], distance)
                self.races.setdefault(found.key(), [found, 0])[1] += other[2]
                self.hazards += other[2]
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
            if self.errors > 0 and not self.races:
                self.faults.append("races that this program could not read")
        elif summary:
            self.errors = int(summary.group(1))
            if self.errors > 0:
                self.faults.append(f"{self.errors} errors")
        else:
            last = [line for line in text.splitlines() if line.strip() and not line.startswith("#")][-1:]
            self.faults.append("no summary, last: " + "".join(last)[:60])
        self.steps = "".join(re.findall(r"^\[ cut after (\d+ steps?) \]", text, re.M)[:1])
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
    known = known_entries(sources, problems)
    runs = [Run(path, sources) for path in sorted(pathlib.Path(sys.argv[1]).glob("*.txt"))] if sys.argv[1:] else []
    good, bad = [], []
    unexplained, library = {}, collections.Counter()  # what and where -> hazards, least distance
    for run in runs:
        new = 0
        for race, hazards in run.races.values():
            entries = [entry for entry in known if entry.explains(run.program, run.case, race)]
            for entry in entries:
                entry.used += hazards
            if race.in_library():
                library[tuple(sorted(race.places))] += hazards
            elif not entries:
                new += 1
                seen = unexplained.setdefault((run.program, run.case, race.severity, race.places), [0, race.distance])
                seen[0] += hazards
                if race.distance is not None:
                    seen[1] = min(seen[1], race.distance)
        if run.places:
            print(f"{run.tool} {run.program} {run.case}:")
            for place, count in run.places.most_common(20):
                print(f"  {count} at {place}")
        (bad if new or run.faults else good).append((
            f"{run.program} {run.case}", run.tool, str(run.seconds), str(run.errors), str(run.hazards),
            str(len(run.races) or len(run.places)), str(new),
            "; ".join(run.faults[:3]) or ("NEW" if new else "ok" + (", " + run.steps if run.steps else ""))))
    for (program, case, severity, places), (hazards, distance) in sorted(
            unexplained.items(), key=lambda item: -item[1][0]):
        one, other = min(places), max(places)
        print(f"# {hazards} hazards, not explained; {severity}, {'?' if distance is None else hex(distance)} apart\n"
              f"{program} | case {case}\n{one}\nagainst\n{other}\n")
    for places, hazards in library.most_common():
        print(f"of a library, {hazards} hazards: {' against '.join(sorted(set(places)))}")
    watched = {run.program for run in runs if run.tool == "racecheck"}
    for entry in known:
        if not entry.used and watched.intersection(entry.programs):
            first = sorted(sorted(entry.pairs, key=sorted)[0])
            print(f"not needed: {entry.head}: {first[0]} against {first[-1]} ..")
    for problem in problems:
        print(problem)
    if runs:
        table([("test", "tool", "s", "errors", "hazards", "line pairs", "new", ""), *good, *bad])
        print(f"{len(runs)} runs, {len(bad)} bad; {len(unexplained)} new line pairs; "
              f"{len(problems)} wrong entries in {KNOWN.name}")
    sys.exit(bool(bad or problems or (sys.argv[1:] and not runs)))


main()
