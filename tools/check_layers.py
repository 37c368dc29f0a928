#!/usr/bin/env python3
"""Refuses an include that the including room's DEPS do not allow, one against the order of folders in src/ops/cuda, CUDA
headers outside their folders, and files opened elsewhere than in base/file.

A room is declared by bt_room(NAME ... DEPS ...) in src/NAME/CMakeLists.txt; only direct DEPS count.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
CUDA_FOLDERS = ("device/cuda", "ops/cuda", "comm/nccl", "comm/symmetric")
# Inside them, what chooses kernels: built and tested without CUDA.
CHOICE_FOLDERS = ("ops/cuda/choose",)
# Libraries of their own inside a room's folder, that stand above others than the room does.
INNER_ROOMS = {
    "comm/nccl": {"base", "comm", "device"},
    "comm/symmetric": {"base", "comm", "device", "tensor", "ops"},
}

# The folders of the kernel room, the lowest first, each with those that it may include besides itself; tests may include
# any. Headers beside the folders are the room's face, which all but FACELESS may include; module.cc may include any.
KERNEL_ROOM = "ops/cuda/"
FOLDERS = {
    "ptx": "",
    "choose": "",
    "layout": "ptx choose",
    "launch": "ptx choose layout",
    "rows": "ptx choose layout launch",
    "linear": "ptx choose layout launch rows",
    "experts": "ptx choose layout launch rows linear",
    "attention": "ptx choose layout launch rows linear",
    "vision": "ptx choose layout launch rows linear",
    "layer": "ptx choose layout launch rows linear experts attention",
    "launch_table": "ptx choose layout launch rows linear experts attention layer",
}
FACELESS = ("ptx", "choose")
FACE = "choose launch/rank_state.h rows/row_sizes.h"  # of headers beside the folders
# What is included although the order does not allow it, and the file or the folder that includes it.
AGAINST_THE_ORDER = {
    # Sizes, in plain C++, that kernels and the choice among them share.
    ("attention/attention_half_sizes.h", "choose"),
    ("attention/attention_sizes.h", "choose"),
    ("attention/decode/mla_decode_limits.h", "choose"),
    ("layout/int4_layout.h", "choose"),
    ("rows/row_sizes.h", "choose"),
    # The number of rows that a norm is begun for.
    ("fused_args.h", "choose"),
    # What plans launch, in the words of the recorded table: for tests.
    ("launch_table/table.h", "choose/linear_launches.h"),
    # A card is asked once how many clusters of these kernels it has room for.
    ("linear/bf16_rows128_internal.h", "launch/card.cc"),
    ("linear/fp8_rows256_internal.h", "launch/card.cc"),
    # One product of e4m3 rows is described by one struct, of a bank or of one matrix.
    ("experts/fp8_bank.h", "linear/fp8_tiles.cu"),
    ("experts/fp8_bank.h", "linear/fp8_tiles_device.cuh"),
    ("experts/fp8_bank.h", "linear/linear.cc"),
}

# Ways to open a file for reading; base/file is the one that knows FIFOs, devices and bounds. The writer, the download and the chat make files.
OPENS = re.compile(r"\b(O_RDONLY|O_RDWR|O_WRONLY|ifstream|fstream|filebuf|fopen|freopen|popen)\b")
MAY_OPEN = {"src/base/file.cc", "src/weights/checkpoint_writer.cc", "apps/pull/partial_file.cc", "apps/chat/private_file.cc",
            "apps/launch/rank_process.cc"}


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


def against_the_order(name, included):
    """Why a file of the kernel room may not include another of it, both from there on; None: it may."""
    folder, other = (path.split("/")[0] if "/" in path else "" for path in (name, included))
    if folder == other or "_test" in name or (not folder and name.endswith(".cc")):
        return None
    if (included, name) in AGAINST_THE_ORDER or (included, folder) in AGAINST_THE_ORDER:
        return None
    if not other:
        return f"{folder} includes nothing that lies beside the folders" if folder in FACELESS else None
    allowed = (FOLDERS[folder] if folder else FACE).split()
    if other in allowed or included in allowed:
        return None
    return f"{folder or 'a header beside the folders'} may include {', '.join(allowed) or 'no other folder'}, not {other}"


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
            elif relative.startswith(CHOICE_FOLDERS) and re.match(r"(cuda|cublas|.*\.cuh$)", target):
                bad.append(f"src/{relative}:{number}: {target}: choices are made without CUDA")
            if relative.startswith(KERNEL_ROOM) and target.startswith(KERNEL_ROOM):
                why = against_the_order(relative.removeprefix(KERNEL_ROOM), target.removeprefix(KERNEL_ROOM))
                if why:
                    bad.append(f"src/{relative}:{number}: {target}: {why}")
            other = target.split("/")[0]
            if match.group(1) != '"' or other not in deps or other == room:
                continue
            if other not in allowed:
                bad.append(f"src/{relative}:{number}: room {room} may not use {other} (its DEPS: {' '.join(sorted(allowed))})")
    print("\n".join(bad) or f"layers: {len(deps)} rooms, all includes allowed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
