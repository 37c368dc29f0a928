#!/usr/bin/env python3
"""By the name of the guides' proxy between servers that compute prompts and servers that compute answers: hands its flags
to `baltoro route`, which is not there yet."""
import os
import subprocess
import sys

program = os.environ.get("BALTORO", "baltoro")
try:
    code = subprocess.run([program, "route", *sys.argv[1:]], check=False).returncode
except OSError as error:
    sys.exit(f"{program}: {error.strerror}; set BALTORO to the program")
if code == 1:
    print("Without it every server computes prompts and answers itself: leave --kv-transfer-config out, and give clients the "
          "servers' own addresses, or put any HTTP load balancer before them.", file=sys.stderr)
sys.exit(code)
