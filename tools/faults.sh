#!/usr/bin/env bash
# Faults, load and public suites against the release build's `baltoro`, from outside: faults.sh [--short] [--list] [--markdown FILE] [ROW...].
# All rows as docs/measured/faults.md has them take an hour and a half; --short takes twelve minutes. Root, for file systems and namespaces.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/install.sh long
tools/venv.sh build/faults/venv tests/faults/requirements.txt
exec build/faults/venv/bin/python tests/faults/run.py "$@"
