#!/usr/bin/env bash
# Formats every C++ file in place; with --check only says which are not formatted. clang-format 14 is part of the rule.
set -euo pipefail
cd "$(dirname "$0")/.."
tool=$(command -v clang-format-14 || command -v clang-format)
mapfile -t files < <(git ls-files --cached --others --exclude-standard -- '*.h' '*.cc' '*.cu' '*.cuh' | grep -v '_tables\.inc$')
if [ "${1:-}" = --check ]; then "$tool" --dry-run -Werror "${files[@]}"; else "$tool" -i "${files[@]}"; fi
