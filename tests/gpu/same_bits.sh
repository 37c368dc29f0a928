#!/usr/bin/env bash
# Overlapping launches change no bit: runs a test program as it is, once more as it is, and with BALTORO_NO_OVERLAP=1, and
# compares the bits that it notes (tests/support/noted_bits.h). The second run shows that bits can be compared at all.
#
#   same_bits.sh PROGRAM [ARGUMENT...]
set -euo pipefail
bits=$(mktemp -d)
trap 'rm -rf "$bits"' EXIT
for run in overlapping again plain; do
  echo "== $run"
  wish=0
  [ $run = plain ] && wish=1
  status=0
  BALTORO_NO_OVERLAP=$wish BALTORO_TEST_BITS=$bits/$run "$@" >"$bits/log" 2>&1 || status=$?
  tail -n 3 "$bits/log"
  if [ $status = 77 ]; then exit 77; fi
  if [ $status != 0 ]; then cat "$bits/log"; exit $status; fi
done
lines=$(wc -l <"$bits/overlapping")
[ "$lines" -gt 0 ] || { echo "the program noted no bits"; exit 1; }
for run in again plain; do
  if ! diff "$bits/overlapping" "$bits/$run" >"$bits/difference"; then
    echo "the run '$run' has other bits:"
    head -n 20 "$bits/difference"
    exit 1
  fi
done
echo "$lines results have the same bits with overlapping and with plain launches"
