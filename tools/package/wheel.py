#!/usr/bin/env python3
"""wheel.py VERSION: build/package/stage as a wheel in dist. Nothing is compiled or run at its installation.

The program is a script of the wheel as it is; pip places the rest under the environment's prefix, where the program looks.
"""
import base64
import hashlib
import pathlib
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
STAGE = ROOT / "build/package/stage"
TAG = "py3-none-manylinux_2_31_x86_64"
# A wheel holds no links. `#!python` becomes the interpreter of the environment.
VLLM = """#!python
import os
import sys

os.execv(os.path.join(os.path.dirname(os.path.abspath(__file__)), "baltoro"), ["vllm", *sys.argv[1:]])
"""


def contents(version):
    """Path in the wheel, bytes, and whether it is a program."""
    data, info = f"baltoro-{version}.data", f"baltoro-{version}.dist-info"
    yield f"{data}/scripts/baltoro", (STAGE / "bin/baltoro").read_bytes(), True
    yield f"{data}/scripts/vllm", VLLM.encode(), True
    for folder in ("lib", "share"):
        for path in sorted((STAGE / folder).rglob("*")):
            if path.is_file():
                yield f"{data}/data/{path.relative_to(STAGE)}", path.read_bytes(), False
    yield f"{info}/licenses/LICENSE", (ROOT / "LICENSE").read_bytes(), False
    yield f"{info}/METADATA", (
        f"Metadata-Version: 2.1\nName: baltoro\nVersion: {version}\nSummary: Inference server for the Kimi K2 family of models\n"
        "License: Apache-2.0\nLicense-File: LICENSE\nRequires-Python: >=3.8\nDescription-Content-Type: text/markdown\n\n"
        + (ROOT / "README.md").read_text()).encode(), False
    yield f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: baltoro\nRoot-Is-Purelib: false\nTag: {TAG}\n".encode(), False


def main():
    version = sys.argv[1]
    path = ROOT / f"dist/baltoro-{version}-{TAG}.whl"
    record = f"baltoro-{version}.dist-info/RECORD"
    rows = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        def put(name, data, program):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if program else 0o100644) << 16
            wheel.writestr(entry, data)

        for name, data, program in contents(version):
            put(name, data, program)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append(f"{name},sha256={digest},{len(data)}\n")
        put(record, ("".join(rows) + f"{record},,\n").encode(), False)
    print(f"dist/{path.name}  {path.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
