#!/usr/bin/env bash
# CMAKE_CUDA_COMPILER_LAUNCHER of an emulated build: objects keep PTX alone, uncompressed, so that ptxas is not run and the
# emulated runtime can read it.
arguments=()
for a in "$@"; do
  case $a in
    *code=*sm_90a*) arguments+=("--generate-code=arch=compute_90a,code=compute_90a" --no-compress) ;;
    *) arguments+=("$a") ;;
  esac
done
exec ${CCACHE:-ccache} "${arguments[@]}"
