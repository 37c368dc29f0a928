#!/usr/bin/env bash
# archive.sh VERSION: build/package/stage as an archive in dist.
set -euo pipefail
cd "$(dirname "$0")/../.."
stage=build/package/stage
name=baltoro-$1-linux-$(uname -m)
[ -d $stage/share/baltoro/pocket ] || name=$name-no-model
rm -rf "build/package/$name"
cp -r $stage "build/package/$name"
ln -s baltoro "build/package/$name/bin/vllm"
cp LICENSE README.md "build/package/$name/"
rmdir --ignore-fail-on-non-empty "build/package/$name/lib"
tar -C build/package --sort=name --owner=0 --group=0 -czf "dist/$name.tar.gz" "$name"
rm -rf "build/package/$name"

size=$(stat -c %s "dist/$name.tar.gz")
printf 'dist/%s.tar.gz  %s.%s MiB\n' "$name" $((size / 1048576)) $((size % 1048576 * 10 / 1048576))
if [ ! -d $stage/share/baltoro/pocket ] && [ "$size" -gt $((20 * 1048576)) ]; then
  echo "over 20 MiB" >&2
  exit 1
fi
