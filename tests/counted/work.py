"""Holds that work is linear in the input: counts executed instructions, which do not depend on how busy the machine is.

work.py SUBJECT [CASE[=n] ...] runs the cases of work_subject.cc (all of them when none is named) under callgrind at the sizes n, 2n and 4n
and looks at what the second doubling adds over what the first adds:

    growth = (w(4n) - w(2n)) / (w(2n) - w(n))

What every size costs alike is not in the differences. Linear work gives 2, n log n a little more, quadratic work 4; linear work with a
part that is quadratic lies between. LIMIT is where that part is a quarter of the work at 4n. Cases called planted_ must be over it.
"""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

LIMIT = 2.4
PROCESSES = 2
BATCHES = 8  # so that both processes have something to do until the end
TIMEOUT_S = 300
# The copies of glibc are vector instructions, of 32 bytes, at any length. Long ones would otherwise be one instruction of the processor
# that valgrind counts once a byte, which makes a step in what is linear.
TUNABLES = "glibc.cpu.x86_rep_movsb_threshold=0x40000000:glibc.cpu.x86_rep_stosb_threshold=0x40000000"


def counts(subject, names):
    """{case: [(size, instructions), ...]}"""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["valgrind", "-q", "--tool=callgrind", "--collect-atstart=no", f"--callgrind-out-file={folder}/out", subject, *names],
            check=True, timeout=TIMEOUT_S, env=os.environ | {"GLIBC_TUNABLES": TUNABLES})
        found = {}
        for path in pathlib.Path(folder).iterdir():
            text = path.read_text(errors="replace")
            trigger = re.search(r"^desc: Trigger: Client Request: (\S+) (\d+)$", text, re.M)
            if trigger:  # the last file is that of the end of the program, which has none
                total = re.search(r"^(?:totals|summary): (\d+)", text, re.M)
                found.setdefault(trigger[1], []).append((int(trigger[2]), int(total[1])))
    return {name: sorted(rows) for name, rows in found.items()}


def growth(rows):
    first, second, third = (instructions for _, instructions in rows)
    return (third - second) / (second - first)


def main(subject, names):
    started = time.monotonic()
    names = names or subprocess.run([subject], check=True, capture_output=True, text=True).stdout.split()
    batches = [names[i::BATCHES] for i in range(min(BATCHES, len(names)))]
    names = [name.partition("=")[0] for name in names]
    measured = {}
    with concurrent.futures.ThreadPoolExecutor(PROCESSES) as pool:
        for some in pool.map(lambda batch: counts(subject, batch), batches):
            measured.update(some)

    wrong = []
    print(f"{'case':30} {'sizes':>22} {'instructions an element':>32} {'growth':>7}")
    for name in names:
        rows = measured[name]
        grown = growth(rows)
        sizes = " ".join(str(size) for size, _ in rows)
        each = " ".join(f"{instructions / size:10.1f}" for size, instructions in rows)
        is_wrong = (grown <= LIMIT) if name.startswith("planted_") else (grown > LIMIT)
        print(f"{name:30} {sizes:>22} {each:>32} {grown:7.2f}{'  <- wrong' if is_wrong else ''}")
        if is_wrong:
            wrong.append(name)
    print(f"{len(names)} cases in {time.monotonic() - started:.0f} s")
    if wrong:
        print(f"linear is a growth of at most {LIMIT}, and what is planted is above it: not so for {', '.join(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
