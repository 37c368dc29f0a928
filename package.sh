#!/usr/bin/env bash
# Makes a relocatable archive: the program, the shared libraries that it needs, and the pocket model. It runs where nothing
# but glibc 2.36 or later is installed. (Built on Ubuntu 24.04 it needs that system's glibc, 2.39.)
#
#   ./package.sh              dist/baltoro-VERSION-linux-x86_64.tar.gz
#   ./package.sh --no-model   the same without the pocket model
set -euo pipefail
cd "$(dirname "$0")"
model=1
case "${1:-}" in
  "") ;;
  --no-model) model=0 ;;
  *) sed -n '2,6p' "$0" | sed 's/^# \{0,1\}//'; exit 2 ;;
esac
tools/install.sh build
[ -e build/release/build.ninja ] || cmake --preset release -DBT_TESTS=OFF -DBT_BENCH=OFF >/dev/null
ninja -C build/release baltoro

version=$(sed -n 's/^project(baltoro VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
name=baltoro-$version-linux-$(uname -m)$([ $model = 1 ] || echo -no-model)
stage=build/package/$name
rm -rf "$stage"
mkdir -p "$stage/bin" "$stage/lib" dist
cp build/release/apps/baltoro "$stage/bin/"
strip "$stage/bin/baltoro"
ln -s baltoro "$stage/bin/vllm"
cp LICENSE README.md "$stage/"
# The CUDA operations, where there is a CUDA compiler: they load the driver and cuBLASLt of the machine they run on.
if ninja -C build/release -t query baltoro_cuda_module >/dev/null 2>&1; then
  ninja -C build/release baltoro_cuda_module
  cp build/release/apps/libbaltoro_cuda.so "$stage/bin/"
fi

# Everything that the program loads but what glibc itself brings. The program's RPATH finds them beside it.
glibc='^(linux-vdso|ld-linux-x86-64|libc|libm|libpthread|libdl|librt|libresolv|libutil|libnsl|libanl|libmvec)\.so'
ldd build/release/apps/baltoro | awk '$2 == "=>" && $3 ~ /^\// {print $1, $3}' | while read -r soname path; do
  if [[ $soname =~ $glibc ]]; then continue; fi
  cp -L "$path" "$stage/lib/$soname"
  chmod u+w "$stage/lib/$soname"
  strip --strip-unneeded "$stage/lib/$soname"
done
if [ $model = 1 ]; then
  mkdir -p "$stage/share/baltoro/pocket"
  cp -r pocket/model pocket/eval pocket/README.md "$stage/share/baltoro/pocket/"
fi
tar -C build/package --sort=name --owner=0 --group=0 -czf "dist/$name.tar.gz" "$name"

# What was packed must be enough: nothing outside the folder may be loaded but glibc.
outside=$(ldd "$stage/bin/baltoro" | awk '$2 == "=>" {print $1, $3}' | grep -v "$(realpath "$stage")/" | grep -vE "$glibc" || true)
if [ -n "$outside" ]; then
  echo "the packed program would load from outside:" >&2
  echo "$outside" >&2
  exit 1
fi
needed=$(objdump -T "$stage/bin/baltoro" "$stage"/lib/* | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -n 1)
size=$(stat -c %s "dist/$name.tar.gz")
printf 'dist/%s.tar.gz  %s.%s MiB, needs %s\n' "$name" $((size / 1048576)) $((size % 1048576 * 10 / 1048576)) "$needed"
if [ $model = 0 ] && [ "$size" -gt $((20 * 1048576)) ]; then
  echo "over 20 MiB" >&2
  exit 1
fi
