#!/usr/bin/env bash
# Builds the program that is packed, and the CUDA operations where there is nvcc (not with --no-cuda), and places them with what
# goes along in build/package/stage, as under a prefix: bin, lib, share. Fails if one of them would want more of a machine than
# glibc 2.31.
set -euo pipefail
cd "$(dirname "$0")/../.."
cuda=ON
if [ "${1:-}" = --no-cuda ]; then cuda=OFF; fi
glibc_max=2.31
work=$PWD/build/package

. /etc/os-release
if [ "$VERSION_CODENAME" != bookworm ]; then
  echo "packages are made on Debian 12 alone, with whose static archives the program is linked; here is $PRETTY_NAME" >&2
  exit 1
fi
tools/package/fetch.sh
tools/package/libraries.sh
cmake --preset portable -DBT_CUDA=$cuda >"$work/configure.log"
ninja -C build/portable baltoro

stage=$work/stage
rm -rf "$stage"
mkdir -p "$stage/bin" "$stage/lib" "$stage/share/baltoro/licences"
cp build/portable/apps/baltoro "$stage/bin/"
# They load the driver and cuBLASLt of the machine that they run on.
if ninja -C build/portable -t query baltoro_cuda_module >/dev/null 2>&1; then
  ninja -C build/portable baltoro_cuda_module
  cp build/portable/apps/libbaltoro_cuda.so "$stage/lib/"
fi
files=$(find "$stage" -type f)
strip $files
for package in libbsd-dev libcurl4-openssl-dev libedit-dev libfmt-dev libjpeg62-turbo-dev libmd-dev libncurses-dev libpng-dev libspdlog-dev \
    libssl-dev libstdc++-12-dev liburing-dev libwebp-dev libyaml-cpp-dev nlohmann-json3-dev prometheus-cpp-dev zlib1g-dev; do
  cp /usr/share/doc/$package/copyright "$stage/share/baltoro/licences/$package"
done
cp LICENSE "$stage/share/baltoro/licences/baltoro"

# What a file needs is what its dynamic section says.
glibc='^(ld-linux-x86-64|libc|libm|libpthread|libdl|librt|libmvec)\.so\.[0-9]+$'
for file in $files; do
  symbols=$(objdump -T "$file")
  needed=$(grep -oE 'GLIBC_[0-9.]+' <<<"$symbols" | sed 's/GLIBC_//' | sort -uV | tail -n 1)
  libraries=$(objdump -p "$file" | awk '$1 == "NEEDED" {print $2}' | grep -vE "$glibc" | grep -v '^libcublasLt\.so\.13$' || true)
  if [ "$(printf '%s\n' "$needed" $glibc_max | sort -V | tail -n 1)" != $glibc_max ]; then
    echo "${file##*/} needs glibc $needed, more than $glibc_max, for:" >&2
    grep -F "GLIBC_$needed" <<<"$symbols" | awk '{print "  " $NF}' >&2
    exit 1
  fi
  if [ -n "$libraries" ]; then
    echo "${file##*/} needs more than glibc of a machine:" $libraries >&2
    exit 1
  fi
  echo "${file##*/}: $(($(stat -c %s "$file") / 1048576)) MiB, needs glibc $needed and nothing else"
done
