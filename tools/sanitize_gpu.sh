#!/usr/bin/env bash
# compute-sanitizer over the tests of kernels, on a GPU; each run ends within a minute.
#
#   tools/sanitize_gpu.sh BUILD OUT [memcheck|racecheck|synccheck ...]     BUILD has src/ops/cuda; logs go to OUT
#   PARALLEL=4: runs at once on the GPU;  ONLY=mla: programs whose name contains it
#
# Tools make kernels 10 to 100 times slower: cases are those of small shapes, and after so many launches the rest of a case runs
# unwatched. A line for each run; fails if one reports an error, a hazard, or does not end.
set -euo pipefail
build=$1 out=$2
shift 2
tools=("$@")
[ ${#tools[@]} -gt 0 ] || tools=(memcheck racecheck)
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
mkdir -p "$out"

# program, case, launches watched
runs() {
  cat <<'RUNS'
attention DecodesInEveryForm 400
attention MixesForms 400
attention GivenPositions 400
mla_decode OddLengths 300
mla_decode ManyPieces 200
mla_decode FewSequencesOfSeveral 200
mla_decode Explicit 200
mla_decode Chunks 200
rows_fused AttentionInputs 300
rows_fused Router 200
rows_fused Quantise 200
route IsThat 200
rows Norm 300
rows KvWrite 200
rows Copy 200
sample RandomRows 200
sample Penalties 100
expert_bank SmallBanks 300
expert_bank Fp8InWholeGroups 150
expert_bank Fp8WithSharedExperts 100
linear SmallShapes 400
linear OddAndUnaligned 200
few_rows Products 100
few_rows Queries 100
norm_join Products 100
norm_join TheBank 100
moe_expert_bank SmallBanks 200
moe_expert_bank HeldElsewhere 100
moe_expert_bank TheJoinedFormAgrees 60
RUNS
}

one() {
  local tool=$1 program=$2 case=$3 launches=$4
  local log="$out/$tool-$program-$case.txt" status=0 start=$SECONDS
  timeout 60 "$sanitizer" --tool "$tool" --launch-count "$launches" --error-exitcode 9 --print-limit 10 \
    "$build/src/ops/cuda/ops_cuda_${program}_test" "$case" > "$log" 2>&1 || status=$?
  local said
  said=$(grep -E "SUMMARY|cases failed" "$log" | sed 's/^=* *//' | tr '\n' ';' || true)
  [ $status != 124 ] || said="not ended after 60 s; $said"
  echo "$tool $program $case: $((SECONDS - start)) s, status $status; $said"
  return $((status != 0))
}
export -f one
export sanitizer build out

for tool in "${tools[@]}"; do
  runs | grep -E "^[^ ]*${ONLY:-}" | sed "s/^/$tool /"
done | xargs -P "${PARALLEL:-4}" -L 1 bash -c 'one "$@"' _
