#!/usr/bin/env bash
# compute-sanitizer over the tests of kernels, on every GPU of the machine (of CUDA_VISIBLE_DEVICES) at once.
#
#   tools/sanitize_gpu.sh BUILD OUT [memcheck|racecheck|synccheck ...]     BUILD has src/ops/cuda; logs go to OUT
#   TOTAL=120: seconds for each tool; EACH=45: for one run;  PARALLEL=6: runs at once on a GPU;  ONLY='^mla|Norm':
#   runs whose "program case" matches;  SANITIZER=...: the program, else compute-sanitizer of PATH or of
#   /usr/local/cuda;  OPTIONS=...: more for it;  PORT=49152: the first of 16 a run
#
# racecheck wants version 2026.4 (2025.3 of CUDA 13.0 has false reports and crashes, docs/measured/cuda-races.md):
#   pip install --no-deps --target DIR nvidia-cuda-sanitizer-api==13.5.25    # 18 MB; driver 580 will do
#   SANITIZER=DIR/nvidia/cu13/bin/compute-sanitizer
#
# Tools make kernels 10 to 100 times slower: cases are those of small shapes. racecheck watches every launch, and the cases
# are smaller and end by themselves at half of EACH (GPU_TEST_SECONDS of tests/support/gpu_test.h). The other tools watch so
# many launches, the rest of a case runs unwatched. Fails if a run reports something that sanitize_known.txt does not explain,
# or does not end. Ends with a table.
set -euo pipefail
if [ $# -lt 2 ]; then
  sed -n '2,18s/^# \?//p' "$0" >&2
  exit 2
fi
build=$1 out=$2
shift 2
tools=("$@")
[ ${#tools[@]} -gt 0 ] || tools=(memcheck racecheck)
here=$(cd "$(dirname "$0")" && pwd)
sanitizer=${SANITIZER:-$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)}
total=${TOTAL:-120} each=${EACH:-45} options=${OPTIONS:-}
devices=${CUDA_VISIBLE_DEVICES:-$(nvidia-smi --query-gpu=index --format=csv,noheader 2> /dev/null | paste -sd, || true)}
devices=${devices:-0}
[ ! -e "$out" ] || [ -z "$(ls -A "$out")" ] || { echo "$out is not empty" >&2; exit 2; }
mkdir -p "$out"

# Program, case, launches to watch (0: all), file whose kernels alone are watched (part of its name; -: of all). The
# longest come first.
runs() {
  if [ "$1" = racecheck ]; then
    # A kernel without shared memory has nothing to race for.
    cat << 'RUNS'
resident_attention LayersInARowOfOneToken 0 -
resident_attention LayersInARowOfSomeTokens 0 -
resident_attention CodedLayersInARow 0 -
resident_attention CodedLongContexts 0 -
resident_attention CodedOneToken 0 -
int4_bank TheSumAgrees 0 -
int4_bank SmallBanksAgree 0 -
int4_bank FewRowsOfAn 0 -
int4_bank SmallBanksWithTheSum 0 -
expert_bank Fp8InWholeGroups 0 -
expert_bank Fp8GroupedSum 0 -
linear ManyRowsOfFp8 0 -
linear TensOfRowsOfFp8 0 -
linear TensOfRowsInEvery 0 -
bf16_rows16 TheBank 0 -
norm_begun TheBank 0 -
bf16_rows16 Products 0 -
bf16_rows16 Queries 0 -
sample RandomRows 0 -
sample Penalties 0 -
expert_bank Fp8WithSharedExperts 0 -
norm_begun Products 0 -
expert_bank SmallBanks 0 -
linear SmallShapes 0 -
linear CodedRows 0 -
int4_bank HeldElsewhere 0 -
mla_decode OddLengths 0 -
mla_decode QueryTokens 0 -
mla_decode ManyPieces 0 -
mla_decode FewSequencesOfSeveral 0 -
mla_decode Explicit 0 -
mla_decode Chunks 0 -
attention DecodesInEveryForm 0 -
attention DecodesFewTokens 0 -
attention DecodesTensOfRows 0 -
attention MixesForms 0 -
attention GivenPositions 0 -
rows_fused Router 0 -
rows_fused AttentionInputs 0 -
rows_fused Quantise 0 -
route IsThat 0 -
bank_sort IsThatOf 0 -
expert_bank_choice ChoosesWhile 0 -
expert_bank_choice FewTokensInOne 0 -
expert_bank Fp8StreamingDealt 0 -
linear OddAndUnaligned 0 -
rows WithASum 0 -
rows NormTest.IsThat 0 -
linear HundredsOfRowsInEvery 0 -
linear SomeHundred 0 -
linear TensOfRowsAsPlanned 0 -
rows_fused OfManyRows 0 -
expert_bank Fp8OfFewTokens 0 -
RUNS
    return
  fi
  cat << 'RUNS'
resident_attention OneToken 100 -
resident_attention OfSomeTokens 100 -
resident_attention CodedLongContexts 100 -
resident_attention CodedWithPlainKeys 100 -
int4_bank SmallBanksAgree 100 int4_streaming
int4_bank SmallBanksAgree 100 int4_grouped
int4_bank TheSumAgrees 60 int4_grouped
int4_bank TheSumAgrees 30 int4_grouped_sum
int4_bank FewRowsOfAn 100 -
int4_bank SmallBanksWithTheSum 100 -
expert_bank Fp8InWholeGroups 60 fp8_streaming
expert_bank Fp8InWholeGroups 60 fp8_tiles
expert_bank Fp8InWholeGroups 20 fp8_pairs
expert_bank Fp8GroupedSum 100 -
expert_bank SmallBanks 300 -
expert_bank Fp8WithSharedExperts 100 -
linear SmallShapes 400 -
linear ManyRowsOfFp8 20 fp8_pairs
linear TensOfRowsOfFp8 100 -
linear TensOfRowsAsPlanned 40 -
linear HundredsOfRowsInEvery 100 -
linear SomeHundred 100 -
expert_bank Fp8OfFewTokens 100 -
expert_bank Fp8StreamingDealt 100 -
rows_fused OfManyRows 60 -
linear TensOfRowsInEvery 100 -
linear CodedRows 100 -
linear OddAndUnaligned 200 -
bf16_rows16 Products 100 -
bf16_rows16 Queries 100 -
bf16_rows16 TheBank 100 -
norm_begun Products 100 -
norm_begun TheBank 100 -
mla_decode OddLengths 300 -
mla_decode QueryTokens 100 -
mla_decode ManyPieces 100 -
mla_decode FewSequencesOfSeveral 200 -
mla_decode Explicit 100 -
mla_decode Chunks 200 -
attention DecodesInEveryForm 400 -
attention DecodesFewTokens 200 -
attention DecodesTensOfRows 100 -
attention MixesForms 400 -
attention GivenPositions 400 -
int4_bank SmallBanksAgree 100 bank_sort
int4_bank HeldElsewhere 100 -
sample RandomRows 200 -
sample Penalties 100 -
rows_fused AttentionInputs 300 -
rows_fused Router 200 -
rows_fused Quantise 200 -
route IsThat 200 -
bank_sort IsThatOf 100 -
expert_bank_choice ChoosesWhile 200 -
expert_bank_choice FewTokensInOne 200 -
rows Norm 300 -
rows KvWrite 200 -
rows Copy 200 -
RUNS
}

# One line of runs() behind the tool; SLOT counts the runs at once.
one() {
  local tool=$1 program=$2 case=$3 launches=$4 file=$5
  local log="$out/$tool-$program-$case-$file.txt" status=0 start=$SECONDS
  local left=$((deadline - $(date +%s)))
  [ $left -lt $each ] || left=$each
  local gpus
  IFS=, read -ra gpus <<< "$devices"
  local watched=(--launch-count "$launches")
  # Kernels lie in nameless namespaces, which the compiler names after the file.
  [ "$file" = - ] || watched+=(--kernel-name "kernel_substring=$file")
  [ "$tool" != racecheck ] || export GPU_TEST_SECONDS=$((left / 2))
  # Beyond 10,000,000 of them, known ones too, the tool says no more.
  export NV_COMPUTE_SANITIZER_MAX_RACECHECK_HAZARDS=1000000000
  if [ $left -lt 12 ]; then
    echo "not started: no time left" > "$log"
  else
    # shellcheck disable=SC2086  # options are words
    CUDA_VISIBLE_DEVICES=${gpus[SLOT % ${#gpus[@]}]} timeout -k 3 "$left" \
      "$sanitizer" --tool "$tool" "${watched[@]}" \
      --print-limit 5000 --show-backtrace no --port $((${PORT:-49152} + 16 * SLOT)) $options \
      "$build/src/ops/cuda/ops_cuda_${program}_test" "$case" > "$log" 2>&1 || status=$?
  fi
  echo "# run: $tool $program $case $file: status $status, $((SECONDS - start)) s" >> "$log"
}
export -f one
export sanitizer build out devices each deadline options

slots=$((${PARALLEL:-6} * $(tr -cd , <<< "$devices," | wc -c)))
for tool in "${tools[@]}"; do
  deadline=$(($(date +%s) + total))
  runs "$tool" | grep -E "${ONLY:-.}" | sed "s/^/$tool /" |
    xargs -P "$slots" -L 1 --process-slot-var=SLOT bash -c 'one "$@"' _
done
"$sanitizer" --version | grep -i version || true
"$here/sanitize_summary.py" "$out"
