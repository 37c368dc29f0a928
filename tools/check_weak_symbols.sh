#!/usr/bin/env bash
# Files that are compiled for newer instructions than the rest must not define weak symbols: of an inline function that
# several files define the linker keeps any one, and that may be the one which older processors cannot run.
#
#   tools/check_weak_symbols.sh ARCHIVE FILE.cc ...    the files' objects are looked for in the archive
set -euo pipefail
archive=$1
shift
symbols=$(nm -C "$archive")
bad=0
for file in "$@"; do
  object=$(basename "$file").o
  # Lines of one member: from its heading to the next empty line.
  member=$(awk -v name="$object:" '$0 == name { found = 1; print; next } found && $0 == "" { exit } found' <<<"$symbols")
  if [ -z "$member" ]; then
    echo "$archive has no $object" >&2
    bad=1
  elif weak=$(grep -E ' [WVu] ' <<<"$member"); then
    printf '%s defines weak symbols:\n%s\n' "$object" "$weak" >&2
    bad=1
  fi
done
exit $bad
