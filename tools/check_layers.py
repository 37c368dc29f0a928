#!/usr/bin/env python3
"""Refuses an include that the including room's DEPS do not allow, CUDA headers outside their folders, and files opened
elsewhere than in base/file.

A room is declared by bt_room(NAME ... DEPS ...) in src/NAME/CMakeLists.txt; only direct DEPS count.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
CUDA_FOLDERS = ("device/cuda", "ops/cuda", "comm/nccl", "comm/symmetric")
# Inside of these, without CUDA: built and tested on any machine.
PLAIN_FOLDERS = ("ops/cuda/choose/",)
# Libraries of their own inside a room's folder, that stand above others than the room does.
INNER_ROOMS = {
    "comm/nccl": {"base", "comm", "device"},
    "comm/symmetric": {"base", "comm", "device", "tensor", "ops"},
}

# Ways to open a file for reading; base/file is the one that knows FIFOs, devices and bounds. The writer makes files.
OPENS = re.compile(r"\b(O_RDONLY|O_RDWR|O_WRONLY|ifstream|fstream|filebuf|fopen|freopen|popen)\b")
MAY_OPEN = {"src/base/file.cc", "src/weights/checkpoint_writer.cc"}


def opened_elsewhere():
    bad = []
    for file in sorted([*SRC.rglob("*"), *(ROOT / "apps").rglob("*")]):
        name = file.relative_to(ROOT).as_posix()
        if file.suffix not in (".h", ".cc", ".cu", ".cuh") or file.stem.endswith("_test") or name in MAY_OPEN:
            continue
        for number, line in enumerate(file.read_text().splitlines(), 1):
            found = None if re.match(r"\s*(//|#\s*include)", line) else OPENS.search(line)
            if found:
                bad.append(f"{name}:{number}: {found.group(1)}: files are opened by base/file.h alone")
    return bad


def declared_deps():
    deps = {}
    for lists in sorted(SRC.glob("*/CMakeLists.txt")):
        match = re.search(r"bt_room\(\s*(\w+)(.*?)\n?\)", lists.read_text(), re.S)
        if not match:
            sys.exit(f"{lists}: no bt_room")
        words = re.search(r"\bDEPS\b([^)]*?)(?=\b(?:SRCS|TESTS|LIBS)\b|$)", match.group(2), re.S)
        deps[match.group(1)] = set(words.group(1).split()) if words else set()
    return deps


def cycles(deps):
    done, path = set(), []

    def visit(room):
        if room in path:
            sys.exit("rooms depend on each other in a circle: " + " -> ".join([*path, room]))
        if room in done:
            return
        path.append(room)
        for dep in deps.get(room, ()):
            visit(dep)
        path.pop()
        done.add(room)

    for room in deps:
        visit(room)


def main():
    deps = declared_deps()
    cycles(deps)
    bad = opened_elsewhere()
    for file in sorted(SRC.rglob("*")):
        if file.suffix not in (".h", ".cc", ".cu", ".cuh", ".inc"):
            continue
        relative = file.relative_to(SRC).as_posix()
        room = relative.split("/")[0]
        allowed = INNER_ROOMS.get("/".join(relative.split("/")[:2]), deps.get(room, set()))
        for number, line in enumerate(file.read_text().splitlines(), 1):
            match = re.match(r'\s*#\s*include\s+([<"])([^>"]+)[>"]', line)
            if not match:
                continue
            target = match.group(2)
            if re.match(r"(cuda|cublas|nccl|cub/|cutlass)", target) and not relative.startswith(CUDA_FOLDERS):
                bad.append(f"src/{relative}:{number}: CUDA header {target} outside {', '.join(CUDA_FOLDERS)}")
            if relative.startswith(PLAIN_FOLDERS) and (re.match(r"cu(da|blas)", target) or target.endswith(".cuh")):
                bad.append(f"src/{relative}:{number}: {target} in a folder without CUDA")
            other = target.split("/")[0]
            if match.group(1) != '"' or other not in deps or other == room:
                continue
            if other not in allowed:
                bad.append(f"src/{relative}:{number}: room {room} may not use {other} (its DEPS: {' '.join(sorted(allowed))})")
    print("\n".join(bad) or f"layers: {len(deps)} rooms, all includes allowed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
