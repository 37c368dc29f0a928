#!/usr/bin/env bash
# Builds every fuzz target with clang, libFuzzer, ASan and UBSan, and runs each for a while, as many at once as there are
# processors: fuzz.sh [SECONDS, default 600] [NAME...]. Found inputs stay in build/fuzz/corpus; a crash leaves its input
# beside it and ends with an error. Inputs worth keeping join those that tests replay:
#   tar -C DIR --sort=name --mtime=@0 --owner=0 --group=0 --mode=644 -cf - $(ls DIR) | gzip -9n > tests/fuzz/corpus/NAME.tar.gz
# where DIR has what build/fuzz/tests/fuzz/kept/NAME has, and the new ones.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-600}
shift || true
tools/install.sh long
CC=clang-19 CXX=clang++-19 cmake -S . -B build/fuzz -G Ninja -DCMAKE_BUILD_TYPE=Debug -DBT_BENCH=OFF -DBT_TESTS=OFF -DBT_CUDA=OFF \
  -DBT_FUZZ=ON >/dev/null
ninja -C build/fuzz fuzz_targets
names=$(cd build/fuzz/tests/fuzz && ls -- *_fuzz)
[ $# -gt 0 ] && names=$*

run_one() {
  mkdir -p "build/fuzz/corpus/$2"
  seeds="$PWD/build/fuzz/tests/fuzz/kept/$2"
  log=build/fuzz/$2.log
  status=0
  (cd build/fuzz/corpus && "../tests/fuzz/$2" -max_total_time="$1" -timeout=25 -rss_limit_mb=2048 -print_final_stats=1 "$2" \
    $([ -d "$seeds" ] && echo "$seeds")) >"$log" 2>&1 || status=$?
  executed=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  features=$(sed -n 's/.*cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
  echo "$2: exit $status after $1 s, ${executed:-?} inputs, ${features:-?} edges"
  [ $status = 0 ] || { tail -n 40 "$log"; exit 255; }
}
export -f run_one
printf '%s\n' $names | xargs -P "$(nproc)" -I{} bash -c "run_one $seconds {}"
