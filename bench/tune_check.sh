#!/bin/sh
# Measures on a GPU what `baltoro tune` is for: a tuned table is not slower than the built-in choices
# beyond the spread, a deliberately bad one changes --explain and the step.
#
#   BALTORO=build/release/apps/baltoro BALTORO_CUDA_MODULE=... bench/tune_check.sh FOLDER
#
# MODELS, BATCHES and RUNS may be set. FOLDER gets the tables, the outputs and summary.txt.
set -eu
out=${1:?usage: bench/tune_check.sh FOLDER}
program=${BALTORO:-build/release/apps/baltoro}
models=${MODELS:-Kimi-K2-Thinking Kimi-K2-Instruct}
batches=${BATCHES:-1 4 16 64}
runs=${RUNS:-5}
export CUDA_MODULE_LOADING="${CUDA_MODULE_LOADING:-LAZY}"
mkdir -p "$out"

step() { # MODEL JSON [options]: a step of the share that was tuned
  model=$1 json=$2
  shift 2
  # shellcheck disable=SC2086
  "$program" bench step "$model" --device cuda -tp 8 --layers 4 --batch $batches --context 1024 --prefill 0 \
    --repeats 60 --json "$json" "$@"
}

for model in $models; do
  here=$out/$model
  mkdir -p "$here"
  begun=$(date +%s)
  # shellcheck disable=SC2086
  "$program" tune "$model" -tp 8 --batch $batches --prefill 0 --tuned-config "$here/tuned.json" > "$here/tune.txt" 2>&1 ||
    { tail -20 "$here/tune.txt"; exit 1; }
  echo "tune took $(($(date +%s) - begun)) s" >> "$here/tune.txt"
  python3 - "$here" <<'PYTHON'
import json, sys
table = json.load(open(f"{sys.argv[1]}/tuned.json"))
table["entries"] = ["linear form=bf16 rows=1..256 kernel=plain", "experts form=int4_group kernel=int4_entries",
                    "experts form=fp8_w8a8 kernel=grouped_products", "linear form=fp8_w8a8 kernel=tiles"]
json.dump(table, open(f"{sys.argv[1]}/bad.json", "w"), indent=2)
PYTHON
  run=1
  while [ "$run" -le "$runs" ]; do
    for table in builtin tuned bad; do
      option=
      [ "$table" = builtin ] || option="--tuned-config $here/$table.json"
      explain=
      [ "$run" -gt 1 ] || explain=--explain
      # shellcheck disable=SC2086
      step "$model" "$here/$table.$run.json" $option $explain > "$here/$table.$run.txt" 2>&1 ||
        { tail -5 "$here/$table.$run.txt"; exit 1; }
    done
    run=$((run + 1))
  done
  {
    echo "== $model"
    tail -n +2 "$here/tune.txt"
    python3 - "$here" "$runs" <<'PYTHON'
import json, statistics, sys
here, runs = sys.argv[1], int(sys.argv[2])
times = {t: [json.load(open(f"{here}/{t}.{r}.json"))["steps"] for r in range(1, runs + 1)] for t in ("builtin", "tuned", "bad")}
for i, case in enumerate(times["builtin"][0]):
    line = f"batch {case['tokens']:>4}:"
    for table, runs_of in times.items():
        ms = [steps[i]["median_ms"] * 1e3 for steps in runs_of]
        line += f"  {table} {statistics.median(ms):7.1f} us ({min(ms):.1f}..{max(ms):.1f})"
    print(line)
PYTHON
    for table in tuned bad; do
      # Lines of the plan alone: times differ in any case.
      grep -E '^    ' "$here/builtin.1.txt" > "$here/builtin.plan"
      grep -E '^    ' "$here/$table.1.txt" > "$here/$table.plan" || true
      echo "--explain, built-in against $table: $(diff "$here/builtin.plan" "$here/$table.plan" | grep -c '^[<>]' || true) lines differ, for example"
      diff "$here/builtin.plan" "$here/$table.plan" | grep '^[<>]' | sort -u | head -6 || true
    done
    grep -h 'Using the tuned table' "$here/tuned.1.txt" "$here/bad.1.txt" || true
  } | tee -a "$out/summary.txt"
done
