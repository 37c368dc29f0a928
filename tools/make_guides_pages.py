#!/usr/bin/env python3
"""Writes the tables of docs/migrating-from-vllm.md and README's table of guides, from docs/flags.md (which a test compares
with the table of flags) and tests/guides/. With --check only says whether they are what it would write."""
import argparse
import json
import pathlib
import re
import shlex
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE, README = ROOT / "docs/migrating-from-vllm.md", ROOT / "README.md"
CASES = json.loads((ROOT / "tests/guides/cases.json").read_text())


def printed(guide, case):
    text = (ROOT / f"tests/guides/{guide}.txt").read_text()
    return re.search(rf"^## {case}\n(.*?)(?=^## |\Z)", text, re.M | re.S).group(1).strip()


def flag_rows():
    """Of `serve`: group, names, and what the flag does today."""
    page = (ROOT / "docs/flags.md").read_text()
    serve = page[page.index("## baltoro serve"):page.index("### Environment")]
    cell = r"((?:[^|\\]|\\.)*?)"
    group, rows = "", []
    for line in serve.splitlines():
        if line.startswith("### "):
            group = line[4:]
        elif found := re.match(rf"\| `(--{cell})` \| {cell} \| {cell} \| {cell} \| {cell} \|$", line):
            rows.append((group, found.group(1).replace("\\|", "|").split(", "), found.groups()[-1]))
    assert len(rows) > 150, len(rows)
    return rows


def flags_of_guides(rows):
    """The main names of flags that the commands give to `serve`."""
    names = {name: spellings[0] for _, spellings, _ in rows for name in spellings}
    used = set()
    for guide in CASES["guides"]:
        for case in guide["cases"]:
            if case["kind"] == "serve":
                words = shlex.split(printed(guide["file"], case["id"]).replace("\\\n", " "))
                used |= {names[word] for word in words if word in names}
    return used


def plan_of(case):
    """What the memory of the guide's GPUs has to say."""
    plan = case["plan"]
    return (f"; by `baltoro plan` a rank on {plan['gpu']} lacks {plan['missing']}, and it fits with `{plan['instead']}`"
            f" (the second node from replica 1 on); on {plan['fits']} it fits as it is")


def today_of(case):
    runs = "runs" + (plan_of(case) if "plan" in case else "")
    if "added" in case:
        runs += f"; in the test with `{case['added']['flags']}`: {case['added']['reason']}"
    if "waits" not in case:
        return runs
    waits = "waits for " + ", ".join(case["waits"])
    if "runs_without" not in case:
        return waits
    return f"{waits}; without {', '.join(f'`{flag}`' for flag in case['runs_without'])} it {runs}"


def shortened(words):
    return "`" + " ".join(words[:3]).replace("|", "\\|") + ("` ..." if len(words) > 3 else "`")


def summary_of(guide, case):
    words = printed(guide, case["id"]).replace("\\\n", " ").split()
    if case["kind"] == "client":
        return "client of the OpenAI library"
    if case["kind"] == "request":
        return f"`curl .../{words[1].split('/', 3)[-1]}`"
    text = shortened(words)
    return f"{shortened(case['ours'].split())}, for {text}" if "ours" in case else text


def guide_tables():
    """A row for neighbours that are alike."""
    text = ""
    for guide in CASES["guides"]:
        text += f"### {guide['title']}\n\n| case | command | today |\n|---|---|---|\n"
        rows = []
        for case in guide["cases"]:
            said = [summary_of(guide["file"], case), today_of(case)]
            if rows and rows[-1][1:] == said:
                rows[-1][0] += ", " + case["id"]
            else:
                rows.append([case["id"], *said])
        text += "".join(f"| {' | '.join(row)} |\n" for row in rows) + "\n"
    return text.rstrip("\n") + "\n"


def missing_list():
    used = {name for guide in CASES["guides"] for case in guide["cases"] for name in case.get("waits", [])}
    return "".join(f"- **{name}**: {entry['is']}.\n" for name, entry in CASES["missing"].items() if name in used)


def flag_table(rows, used):
    text = "| flag | today |\n|---|---|\n"
    for _, spellings, today in rows:
        if spellings[0] in used:
            text += f"| `{spellings[0]}` | {today} |\n"
    return text


def readme_table():
    table = "| guide | commands | run today | the others wait for |\n|---|---|---|---|\n"
    for guide in CASES["guides"]:
        waiting = [case for case in guide["cases"] if "waits" in case]
        names = sorted({name for case in waiting for name in case["waits"]}, key=str.lower)
        count = len(guide["cases"])
        table += f"| {guide['title']} | {count} | {count - len(waiting)} | {', '.join(names)} |\n"
    short = [case for guide in CASES["guides"] for case in guide["cases"] if "plan" in case]
    if short:
        names, gpus = (", ".join(sorted({name(case) for case in short})) for name in (lambda case: case["id"], lambda case: case["plan"]["gpu"]))
        table += (f"\nOf the commands that run, {names} have no room on the GPUs of the guides' example ({gpus}), as `baltoro plan` "
                  "says: `docs/migrating-from-vllm.md` has flags that fit.\n")
    return table


def filled(path, tables):
    """The page with each table between its marks."""
    text = path.read_text()
    for name, table in tables.items():
        text, count = re.subn(rf"(<!-- {name} -->\n).*?(<!-- end -->\n)", lambda marks: marks[1] + table + marks[2], text,
                              flags=re.S)
        assert count == 1, f"{path}: {name}"
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where a page differs")
    check = parser.parse_args().check
    differ = []
    rows = flag_rows()
    pages = ((PAGE, {"missing": missing_list(), "guides": guide_tables(),
                     "flags of guides": flag_table(rows, flags_of_guides(rows))}),
             (README, {"guides": readme_table()}))
    for path, tables in pages:
        text = filled(path, tables)
        if path.read_text() == text:
            continue
        differ.append(str(path.relative_to(ROOT)))
        if not check:
            path.write_text(text)
    if check and differ:
        print(f"{', '.join(differ)}: not as tools/make_guides_pages.py writes it; run it", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
