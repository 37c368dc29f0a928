#!/usr/bin/env bash
# Makes (or completes) the Python environment of the tests: venv.sh DIR. Clients and references only; nothing of it is
# part of the product.
set -euo pipefail
dir=${1:?}
cd "$(dirname "$0")/.."
stamp="$dir/.complete-$(sha256sum tests/requirements.txt | cut -c1-16)"
[ -e "$stamp" ] && exit 0
python3 -m venv "$dir"
"$dir/bin/pip" install -q --disable-pip-version-check -r tests/requirements.txt
touch "$stamp"
