#!/usr/bin/env python3
"""By the name of vLLM's script that tunes its Triton kernels: hands its flags to `baltoro tune`, which is not there yet."""
import os
import subprocess
import sys

program = os.environ.get("BALTORO", "baltoro")
try:
    code = subprocess.run([program, "tune", *sys.argv[1:]], check=False).returncode
except OSError as error:
    sys.exit(f"{program}: {error.strerror}; set BALTORO to the program")
if code == 1:
    print("Serving needs no tuning: the kernels of this program are chosen by a table that is part of it "
          "(baltoro bench step MODEL --explain), so leave this job out, and VLLM_TUNED_CONFIG_FOLDER too.", file=sys.stderr)
sys.exit(code)
