#!/usr/bin/env bash
# Makes (or completes) a Python environment of tests: venv.sh DIR [REQUIREMENTS]. Clients and references only; nothing of it is
# part of the product.
set -euo pipefail
dir=${1:?}
cd "$(dirname "$0")/.."
requirements=${2:-tests/requirements.txt}
stamp="$dir/.complete-$(sha256sum "$requirements" | cut -c1-16)"
[ -e "$stamp" ] && exit 0
python3 -m venv "$dir"
"$dir/bin/pip" install -q --disable-pip-version-check -r "$requirements"
touch "$stamp"
