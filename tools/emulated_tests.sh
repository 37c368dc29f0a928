#!/usr/bin/env bash
# The kernels on a machine without a GPU: compiles the CUDA module to PTX, holds what every operation launches to the recorded
# table, and runs instructions and kernels on the emulator (tools/gpu_emulator): of the kernels' cases those that it is fast with.
#
#   tools/emulated_tests.sh
#
# Needs nvcc; without one it says so and is done. How long it takes stands in tools/gpu_emulator/README.md.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v nvcc >/dev/null && [ ! -x /usr/local/cuda/bin/nvcc ]; then
  echo "SKIPPED: no nvcc in PATH or /usr/local/cuda/bin: kernels are not compiled, their launches not compared, none is run"
  exit 0
fi
jobs=${EMU_JOBS:-$(nproc)}

# Programs, and a part of their cases' names; without one, all cases. The longest first.
tests=(
  "ops_cuda_bf16_rows16_test"
  "ops_cuda_mla_decode_test"
  "ops_cuda_sample_test"
  "ops_cuda_int4_bank_test FewRowsOfAnExpertAgreeWithPlainLoops"
  "ops_cuda_expert_bank_test InEveryForm"
  "ops_cuda_expert_bank_choice_test"
  "ops_cuda_attention_test DecodesFewTokensWithoutLogSums"
  "ops_cuda_expert_bank_test Shared"
  "ops_cuda_linear_test SomeHundredRowsOfFp8"
  "ops_cuda_linear_test HundredsOfRowsInEveryPlan"
  "ops_cuda_norm_begun_test"
  "ops_cuda_experts_of_group_test"
  "ops_cuda_attention_test MergesPasses"
  "ops_cuda_launch_table_test"
  "ops_cuda_rows_fused_test"
  "ops_cuda_pick_test"
  "ops_cuda_rows_test"
  "ops_cuda_linear_test TensOfRowsAsPlanned"
  "ops_cuda_expert_bank_test Fp8StreamingDealtOut"
  "ops_cuda_expert_bank_test Fp8RowsInOrder"
  "ops_cuda_attention_test MixesFormsInAStep"
  "ops_cuda_linear_test SmallShapesInEveryForm"
  "ops_cuda_attention_test AGraphFollowsThePlan"
  "ops_cuda_expert_bank_test ResultsInBf16"
  "ops_cuda_resident_attention_test CodedOneToken"
  "ops_cuda_resident_attention_test LayersInARowOfOneToken"
  "ops_cuda_expert_bank_test TakesKnownCodes"
  "ops_cuda_attention_test NotANumber"
  "ops_cuda_linear_test CodedRowsOfFp8"
  "ops_cuda_expert_bank_test TheNormOrdered"
  "ops_cuda_head_attention_test"
  "ops_cuda_heads_half_test"
  "ops_cuda_route_test"
  "ops_cuda_expert_bank_test NaN"
  "ops_cuda_expert_bank_test RunsInAGraph"
  "ops_cuda_linear_test NaN"
  "ops_cuda_linear_test RunsInAGraph"
  "ops_cuda_linear_test Parts"
  "ops_cuda_linear_test Odd"
  "ops_cuda_bank_sort_test"
  "ops_cuda_early_launch_test"
  "ops_cuda_rank_state_test"
  "ops_cuda_vision_test"
)
for file in tools/gpu_emulator/tests/*_test.cu; do
  tests+=("instructions_cuda_$(basename "$file" .cu)")
done

mapfile -t programs < <(printf '%s\n' "${tests[@]}" | cut -d' ' -f1 | sort -u)
EMU_JOBS=$jobs tools/emulate_gpu.sh --build baltoro_cuda_module "${programs[@]}"

# Prints a line for a test that passes, and all that one that fails has said.
one() {
  local started=$SECONDS said
  # shellcheck disable=SC2086
  if said=$(timeout 600 "$(find build/emulated -name "${1%% *}" -type f -perm -u+x)" ${1#"${1%% *}"} 2>&1); then
    echo "$((SECONDS - started)) s  $1"
  else
    printf '%s\nFAILED  %s\n' "$said" "$1"
    return 1
  fi
}
export -f one
printf '%s\0' "${tests[@]}" | xargs -0 -P "$jobs" -I{} bash -c 'one "$@"' _ {}

# A whole model of the release build on the emulated module: prompts, decoding, drafts, recorded steps, taps.
model=build/release/src/model/model_gpu_model_test
if [ ! -x "$model" ]; then
  echo "SKIPPED: $model is not built: no whole model is run (cmake --preset release -DBT_TESTS=ON)"
  exit 0
fi
started=$SECONDS
if ! said=$(BALTORO_CUDA_MODULE=$PWD/build/emulated/apps/libbaltoro_cuda.so timeout 600 "$model" \
  --gtest_filter='Forms/GpuFormTest*/Int4' --gtest_brief=1 2>&1) || ! grep -q 'PASSED.* 2 tests' <<<"$said"; then
  printf '%s\nFAILED  a model with INT4 experts\n' "$said"
  exit 1
fi
echo "$((SECONDS - started)) s  a model with INT4 experts"
