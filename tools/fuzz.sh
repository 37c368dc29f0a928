#!/usr/bin/env bash
# Builds every fuzz target with clang, libFuzzer, ASan and UBSan, and runs each for a while: fuzz.sh [SECONDS, default
# 600] [NAME...]. Found inputs stay in build/fuzz/corpus; a crash leaves its input beside it and ends with an error.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-600}
shift || true
tools/install.sh long
CC=clang-19 CXX=clang++-19 cmake -S . -B build/fuzz -G Ninja -DCMAKE_BUILD_TYPE=Debug -DBT_BENCH=OFF -DBT_TESTS=OFF \
  -DBT_FUZZ=ON >/dev/null
ninja -C build/fuzz fuzz_targets
for target in build/fuzz/tests/fuzz/*_fuzz; do
  name=$(basename "$target")
  if [ $# -gt 0 ] && [[ " $* " != *" $name "* ]]; then continue; fi
  mkdir -p "build/fuzz/corpus/$name"
  seeds="tests/fuzz/corpus/$name"
  echo "== $name, $seconds s"
  (cd build/fuzz/corpus && "../../../$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    "$name" $([ -d "../../../$seeds" ] && echo "../../../$seeds")) 2>&1 | tail -n 12
done
