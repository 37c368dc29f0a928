#!/usr/bin/env bash
# compute-sanitizer over the tests of kernels, on every GPU of the machine at once.
#
#   tools/sanitize_gpu.sh BUILD OUT [memcheck|racecheck|synccheck ...]     BUILD has src/ops/cuda; logs go to OUT
#   TOTAL=120: seconds for each tool; EACH=45: for one run;  PARALLEL=6: runs at once on a GPU;  ONLY=mla: programs
#   whose name contains it
#
# Tools make kernels 10 to 100 times slower: cases are those of small shapes, and after so many launches the rest of a case runs
# unwatched. Fails if a run reports something that sanitize_known.txt does not explain, or does not end. Ends with a table.
set -euo pipefail
if [ $# -lt 2 ]; then
  sed -n '2,9s/^# \?//p' "$0" >&2
  exit 2
fi
build=$1 out=$2
shift 2
tools=("$@")
[ ${#tools[@]} -gt 0 ] || tools=(memcheck racecheck)
here=$(cd "$(dirname "$0")" && pwd)
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
total=${TOTAL:-120} each=${EACH:-45}
gpus=$(nvidia-smi -L 2> /dev/null | grep -c '^GPU' || true)
[ "$gpus" -gt 0 ] || gpus=1
[ ! -e "$out" ] || [ -z "$(ls -A "$out")" ] || { echo "$out is not empty" >&2; exit 2; }
mkdir -p "$out"

# Program, case, launches watched by racecheck, by the others, file whose kernels alone are watched (part of its name; -: of
# all). The longest come first. A kernel without shared memory has nothing to race for: 0 leaves the run out.
runs() {
  cat <<'RUNS'
moe_expert_bank SmallBanks 40 100 moe_stream
moe_expert_bank SmallBanks 60 100 moe_wide
moe_expert_bank TheJoinedFormAgrees 40 60 moe_wide
expert_bank Fp8InWholeGroups 16 60 fp8_stream
expert_bank Fp8InWholeGroups 16 60 fp8_wide
expert_bank Fp8InWholeGroups 8 20 fp8_large
expert_bank SmallBanks 60 300 -
expert_bank Fp8WithSharedExperts 30 100 -
linear SmallShapes 100 400 -
linear ManyRowsOfFp8 6 20 fp8_large
linear OddAndUnaligned 60 200 -
few_rows Products 20 100 -
few_rows Queries 20 100 -
few_rows TheBank 24 100 -
norm_join Products 20 100 -
norm_join TheBank 20 100 -
mla_decode OddLengths 60 300 -
mla_decode QueryTokens 30 100 -
mla_decode ManyPieces 24 100 -
mla_decode FewSequencesOfSeveral 40 200 -
mla_decode Explicit 20 100 -
mla_decode Chunks 40 200 -
attention DecodesInEveryForm 60 400 -
attention DecodesFewTokens 40 200 -
attention MixesForms 40 400 -
attention GivenPositions 40 400 -
moe_expert_bank SmallBanks 30 100 moe_route
moe_expert_bank HeldElsewhere 30 100 -
sample RandomRows 24 200 -
sample Penalties 16 100 -
rows_fused AttentionInputs 60 300 -
rows_fused Router 60 200 -
rows_fused Quantise 60 200 -
route IsThat 60 200 -
rows Norm 60 300 -
rows KvWrite 0 200 -
rows Copy 0 200 -
RUNS
}

# One line of runs() behind the tool; SLOT counts the runs at once.
one() {
  local tool=$1 program=$2 case=$3 launches=$4 file=$6
  [ "$tool" = racecheck ] || launches=$5
  [ "$launches" != 0 ] || return 0
  local log="$out/$tool-$program-$case-$file.txt" status=0 start=$SECONDS
  local left=$((deadline - $(date +%s)))
  [ $left -lt $each ] || left=$each
  local watched=(--launch-count "$launches")
  # Kernels lie in nameless namespaces, which the compiler names after the file.
  [ "$file" = - ] || watched+=(--kernel-name "kernel_substring=$file")
  if [ $left -lt 5 ]; then
    echo "not started: no time left" > "$log"
  else
    CUDA_VISIBLE_DEVICES=$((SLOT % gpus)) timeout -k 3 "$left" "$sanitizer" --tool "$tool" "${watched[@]}" \
      --print-limit 5000 --show-backtrace no --port $((49152 + 16 * SLOT)) \
      "$build/src/ops/cuda/ops_cuda_${program}_test" "$case" > "$log" 2>&1 || status=$?
  fi
  echo "# run: $tool $program $case $file: status $status, $((SECONDS - start)) s" >> "$log"
}
export -f one
export sanitizer build out gpus each deadline

for tool in "${tools[@]}"; do
  deadline=$(($(date +%s) + total))
  runs | grep -E "^[^ ]*${ONLY:-}" | sed "s/^/$tool /" |
    xargs -P "$((${PARALLEL:-6} * gpus))" -L 1 --process-slot-var=SLOT bash -c 'one "$@"' _
done
"$here/sanitize_summary.py" "$out"
