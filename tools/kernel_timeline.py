#!/usr/bin/env python3
"""Timeline of a program's last kernels on a GPU, with the overlap they have in replayed graphs.

    tools/kernel_timeline.py [--last 40] [--skip 4] COMMAND...

"chain" is what a kernel costs those behind it: its end minus the end of all before it. "took" counts from its placement, so that a kernel
which is placed early and waits for the one ahead has that wait in it. All in us; tracing adds about half of one to some kernels. Needs g++
and CUPTI (the CUDA toolkit's, or the wheel nvidia-cuda-cupti).
"""

import argparse
import glob
import os
import re
import subprocess
import sys
import tempfile


def cupti():
    """Folders of cupti.h and of libcupti."""
    roots = ["/usr/local/cuda", "/usr/local/cuda/extras/CUPTI"]
    for path in sys.path:
        roots += glob.glob(os.path.join(path, "nvidia", "cu*")) + glob.glob(os.path.join(path, "nvidia", "cuda_cupti"))
    headers = [r + "/include" for r in roots if os.path.exists(r + "/include/cupti.h")]
    libraries = [lib for r in roots for d in ("lib64", "lib") for lib in sorted(glob.glob(f"{r}/{d}/libcupti.so*"))]
    if not headers or not libraries:
        sys.exit("cupti.h or libcupti.so not found; install the CUDA toolkit or the Python package nvidia-cuda-cupti")
    includes = headers + [r + "/include" for r in roots if os.path.exists(r + "/include/cuda.h")]
    return includes, libraries[0]


def record(command, folder):
    includes, library = cupti()
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kernel_trace.cc")
    injected, trace = os.path.join(folder, "kernel_trace.so"), os.path.join(folder, "trace.txt")
    flags = [f"-I{i}" for i in includes]
    where = os.path.dirname(library)
    subprocess.run(["g++", "-std=c++20", "-O2", "-shared", "-fPIC", *flags, source, library, f"-Wl,-rpath,{where}", "-o", injected], check=True)
    env = dict(os.environ, CUDA_INJECTION64_PATH=injected, KERNEL_TRACE=trace)
    subprocess.run(command, check=True, env=env)
    rows = []
    for line in open(trace) if os.path.exists(trace) else []:
        parts = line.split(None, 3)
        if line.startswith("#"):
            sys.exit(line)
        rows.append((int(parts[0]), int(parts[1]), parts[2], parts[3].strip()))
    if not rows:
        sys.exit("no kernels were seen: is there a GPU, and may this user read its counters?")
    return sorted(rows)


def short(name):
    """The function of a mangled name."""
    found = re.search(r"\d+([A-Z][A-Za-z0-9]*(?:Kernel|Rows))", name)
    return found.group(1) if found else name[:40]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--last", type=int, default=40, help="kernels to print (40)")
    parser.add_argument("--skip", type=int, default=4, help="leave out that many at the end (4)")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    if not args.command:
        parser.error("which program?")
    with tempfile.TemporaryDirectory() as folder:
        rows = record(args.command, folder)
    rows = rows[: len(rows) - args.skip][-args.last :]
    begin = end = rows[0][0]
    print(f"{'begins':>9} {'took':>8} {'chain':>8}  {'grid':<12} kernel")
    for start, stop, grid, name in rows:
        print(f"{(start - begin) / 1e3:9.2f} {(stop - start) / 1e3:8.2f} {(stop - end) / 1e3:8.2f}  {grid:<12} {short(name)}")
        end = max(end, stop)
    print(f"{(end - begin) / 1e3:9.2f} in all")


if __name__ == "__main__":
    main()
