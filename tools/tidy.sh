#!/usr/bin/env bash
# clang-tidy 14 on what .clang-tidy promises. tools/tidy.sh [FOLDER ...]: the rooms in which it finds nothing, which is to stay so,
# or those folders. Some two seconds of a processor for a file.
#
#   tools/tidy.sh
#   tools/tidy.sh src/net src/server
set -euo pipefail
cd "$(dirname "$0")/.."
folders=("$@")
if [ $# -eq 0 ]; then folders=(src/base src/request src/disk src/tensor src/device src/cache src/comm src/engine); fi
tidy=$(command -v clang-tidy-14 || command -v clang-tidy)
[ -f build/release/compile_commands.json ] || cmake --preset release -DBT_TESTS=ON -DBT_BENCH=ON -DBT_CUDA=OFF >/dev/null
# (Tests are written in macros of others. g++ knows warnings that clang does not.)
git ls-files -- "${folders[@]/%//*.cc}" | grep -vE '_test\.cc$|/cuda/|/nccl/|/symmetric/' |
  xargs -n 4 -P "$(nproc)" "$tidy" -p build/release --quiet --extra-arg=-Wno-unknown-warning-option
echo "clang-tidy finds nothing in ${folders[*]}"
