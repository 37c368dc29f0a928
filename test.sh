#!/usr/bin/env bash
# Installs what the tests need, builds, and runs every test that this machine can run.
#
#   ./test.sh          format, layers; a release build with the end-to-end tests; the unit tests, most of them under the address
#                      and undefined-behaviour sanitizers (cmake/room.cmake says which where); and where nvcc is found the kernels
#                      on an emulated GPU (two minutes on two cores; before it five to compile them, where the compiler cache is
#                      empty)
#   ./test.sh --long   all that, with all unit tests in the release build too and every check of the sanitizers, then: clang-tidy,
#                      thread sanitizer, the long simulations, load and faults, the fuzz targets; takes hours
set -euo pipefail
cd "$(dirname "$0")"
long=0
case "${1:-}" in
  "") ;;
  --long) long=1 ;;
  *) sed -n '2,9p' "$0" | sed 's/^# \{0,1\}//'; exit 2 ;;
esac
started=$(date +%s)
step() { printf '\n== %s  (%s s)\n' "$*" "$(($(date +%s) - started))"; }

step "packages"
tools/install.sh $([ $long = 1 ] && echo long || echo test)
tools/venv.sh .venv

step "format, layers, words"
tools/format.sh --check
tools/check_layers.py
tools/check_words.sh

step "release build"
# (Kernels are below, and whole where there is a GPU: cmake --preset cuda-only, ctest -L gpu.)
cmake --preset release -DBT_TESTS=ON -DBT_BENCH=ON -DBT_CUDA=OFF -DBT_TESTS_OF=$([ $long = 1 ] && echo all || echo release) >/dev/null
ninja -C build/release

step "unit and golden tests"
ctest --test-dir build/release --output-on-failure -j2 -LE 'gpu|e2e'

step "against libraries of others, from outside, and work counted in instructions"
BALTORO_TEST_BROWSER=must ctest --test-dir build/release --output-on-failure -j2 -L e2e

step "address and undefined-behaviour sanitizers, host rooms"
# (The checks left out double the time that a file takes to compile; --long makes them, and runs all tests here too.)
if [ $long = 1 ]; then
  cmake --preset asan -DBT_BENCH=OFF -DBT_TESTS_OF=all -DBT_SANITIZE_WITHOUT= >/dev/null
else
  cmake --preset asan -DBT_BENCH=OFF -DBT_TESTS_OF=sanitized -DBT_SANITIZE_WITHOUT=null,alignment,object-size,vptr >/dev/null
fi
ninja -C build/asan unit_tests
# (detect_stack_use_after_return stays off: g++ 12 places its fake frames too loosely for 64-byte vectors.)
ctest --test-dir build/asan --output-on-failure -j2 -LE "gpu|e2e$([ $long = 1 ] || echo '|slow')"

step "kernels, on an emulated GPU"
tools/emulated_tests.sh

if [ $long = 1 ]; then
  step "clang-tidy"
  tools/tidy.sh
  step "thread sanitizer"
  cmake --preset tsan -DBT_BENCH=OFF >/dev/null
  ninja -C build/tsan unit_tests
  ctest --test-dir build/tsan --output-on-failure -j2 -LE 'gpu|e2e'
  step "long simulations, a million streams, 200,000 draws with drafts"
  BT_SIMULATION_SEEDS=10000 BALTORO_LONG=1 ctest --test-dir build/release --output-on-failure \
    -R 'simulation|event_parser_test|chat_shape_test|draft_distribution_test'
  step "all cases of the pocket model in every weight form; all values of flags; 10,000 tool calls and structured answers; nodes that die 20 times"
  BALTORO_LONG=1 ctest --test-dir build/release --output-on-failure -R 'e2e/(weight_forms|tools_random|plan|nodes|layout_guides)'
  step "load, faults and public suites: docs/measured/faults.md"
  tools/faults.sh
  step "fuzz targets"
  tools/fuzz.sh "${BALTORO_FUZZ_SECONDS:-600}"
fi
step "all passed"
