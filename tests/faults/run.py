#!/usr/bin/env python3
"""Runs rows of faults and suites against `baltoro` and prints a table; `tools/faults.sh` prepares what it needs.

    run.py [--short] [--markdown FILE] [ROW...]

--short takes a few minutes with reduced counts; without it the counts are those of docs/measured/faults.md. The exit status is 1 if a
row fails. BALTORO names the program.
"""
import argparse
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import load  # noqa: E402, F401
import slow  # noqa: E402, F401
import process  # noqa: E402, F401
import files  # noqa: E402, F401
import suites  # noqa: E402, F401
from harness import ROWS, Row  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--list", action="store_true", help="names the rows")
    parser.add_argument("--markdown", help="writes the table there too")
    parser.add_argument("rows", nargs="*")
    options = parser.parse_args()
    if options.list:
        for name, (what, _) in ROWS.items():
            print(f"{name:14} {what}")
        return
    unknown = [name for name in options.rows if name not in ROWS]
    if unknown:
        sys.exit(f"no such row: {' '.join(unknown)}; there are {' '.join(ROWS)}")
    failed, table = [], ["| row | what was done | figures | result |", "|---|---|---|---|"]
    for name in options.rows or ROWS:
        row = Row(name, options.short)
        begun = time.monotonic()
        row.run(300 if options.short else 2700)
        result = "pass" if not row.failures else "FAIL"
        print(f"{result} {name}: {ROWS[name][0]} ({time.monotonic() - begun:.0f} s)\n     {'; '.join(row.figures)}", flush=True)
        told = dict.fromkeys(row.failures)
        for failure in list(told)[:8]:
            print(f"     failed: {failure}", flush=True)
        if len(told) > 8:
            print(f"     and {len(told) - 8} more", flush=True)
        if row.failures:
            failed.append(name)
        table.append(f"| {name} | {ROWS[name][0]} | {'; '.join(row.figures)} | {result}{': ' + next(iter(told))[:200] if told else ''} |")
    if options.markdown:
        pathlib.Path(options.markdown).write_text("\n".join(table) + "\n")
    print(f"{len(options.rows or ROWS) - len(failed)} passed, {len(failed)} failed" + (": " + " ".join(failed) if failed else ""))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
