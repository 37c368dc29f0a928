#!/usr/bin/env python3
"""By the name of vLLM's script that tunes its Triton kernels: hands its flags to `baltoro tune`."""
import os
import subprocess
import sys

program = os.environ.get("BALTORO", "baltoro")
try:
    sys.exit(subprocess.run([program, "tune", *sys.argv[1:]], check=False).returncode)
except OSError as error:
    sys.exit(f"{program}: {error.strerror}; set BALTORO to the program")
