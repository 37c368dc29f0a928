#!/usr/bin/env python3
"""By the name of the guides' launcher of data-parallel servers: hands its flags to `baltoro launch`, which runs
`run_dp_template.sh` of the working directory once for each server of this node."""
import os
import sys

program = os.environ.get("BALTORO", "baltoro")
try:
    os.execvp(program, [program, "launch", *sys.argv[1:]])
except OSError as error:
    sys.exit(f"{program}: {error.strerror}; set BALTORO to the program")
