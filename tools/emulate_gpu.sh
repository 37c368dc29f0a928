#!/usr/bin/env bash
# A GPU test or benchmark program on this machine's CPU: tools/emulate_gpu.sh TARGET [ARGUMENTS]
#
#   tools/emulate_gpu.sh ops_cuda_route_test
#   tools/emulate_gpu.sh --build ops_cuda_route_test ops_cuda_rows_test    # which are not run
#   EMU_SMS=16 EMU_VERBOSE=1 tools/emulate_gpu.sh ops_cuda_bf16_rows16_test SomePartOfACase
#
# Needs nvcc, no GPU. What it finds, what it does not, and its switches: tools/gpu_emulator/README.md.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ $# -lt 1 ]; then
  sed -n '2,8s/^# \?//p' "$0" >&2
  exit 2
fi
run=1
targets=("$1")
shift
if [ "${targets[0]}" = --build ]; then
  run=0
  targets=("$@")
fi
build=$PWD/build/emulated library=$PWD/build/emulator jobs=${EMU_JOBS:-$(nproc)}
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
[ -x "$nvcc" ] || { echo "nvcc is not in PATH and not at $nvcc: it makes the PTX that is run" >&2; exit 1; }
CCACHE=$(command -v ccache || true)
# Objects of other checkouts are taken from the compiler cache.
export CCACHE CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
cuda=$(cd "$(dirname "$nvcc")/.." && pwd)
program_of() { find "$build" -name "$1" -type f -perm -u+x | head -1; }
{
  make -s -j"$jobs" -C tools/gpu_emulator OUT="$library" CUDA="$cuda"
  if [ ! -f "$build/build.ninja" ]; then
    cmake -S . -B "$build" -G Ninja -DBT_CUDA_ONLY=ON -DCMAKE_BUILD_TYPE=Release -DCMAKE_CUDA_COMPILER="$nvcc" \
      -DCMAKE_CUDA_COMPILER_LAUNCHER="$PWD/tools/gpu_emulator/nvcc_ptx_only.sh" -DCMAKE_CUDA_RUNTIME_LIBRARY=None \
      -DCUDA_cudart_static_LIBRARY="$library/libemulated_cudart.a" \
      -DCUDA_cublasLt_LIBRARY="$library/libemulated_cublasLt.a"
  fi
  # The emulator is no dependency of the build: what is older than it is linked anew.
  for target in "${targets[@]}"; do
    program=$(program_of "$target")
    if [ -n "$program" ] && [ "$library/libemulated_cudart.a" -nt "$program" ]; then rm -f "$program"; fi
  done
  ninja -C "$build" -j"$jobs" "${targets[@]}"
} >&2
if [ $run = 1 ]; then exec "$(program_of "${targets[0]}")" "$@"; fi
