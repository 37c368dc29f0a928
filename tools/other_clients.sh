#!/usr/bin/env bash
# Evaluation and load tools of others against the release build's `baltoro` with the pocket model; each must finish with the answer
# that it should have. docs/evaluating.md has the commands for a server of your own.
#
#   tools/other_clients.sh               makes their environment (0.9 GB; versions: tests/other_clients.txt), then takes some minutes
#   tools/other_clients.sh --data DIR    only writes the questions that docs/evaluating.md asks, in each tool's form
set -euo pipefail
cd "$(dirname "$0")/.."

# 27 sums of the held-out file whose answer is a number: as they are, with wrong answers beside them, and in the form of GSM8K.
write_data() {
  python3 - "$1" <<'END'
import gzip, json, pathlib, sys

out = pathlib.Path(sys.argv[1]).resolve()
(out / "gsm8k").mkdir(parents=True, exist_ok=True)
with gzip.open("pocket/eval/cases.jsonl.gz", "rt") as file:
    cases = [case for case in map(json.loads, file) if case["task"] == "arithmetic-instant" and case["tier"] == "easy"]
sums = [(case["messages"][0]["content"], case["expect"]["text"]) for case in cases
        if len(case["messages"]) == 1 and case["expect"]["text"].isdigit()]


def write(name, rows):
    (out / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


write("numbers.jsonl", [{"question": q, "answer": a, "choices": [a, str(int(a) + 3), str(int(a) + 10)]} for q, a in sums])
write("gsm8k/test.jsonl", [{"question": q, "answer": f"#### {a}"} for q, a in sums])
write("gsm8k/train.jsonl", [{"question": q, "answer": f"#### {a}"} for q, a in sums[:4]])
common = f'dataset_path: json\ndataset_kwargs: {{data_files: {{test: "{out}/numbers.jsonl"}}}}\ntest_split: test\nnum_fewshot: 0\n'
(out / "numbers.yaml").write_text("task: numbers\noutput_type: generate_until\n" + common + """doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["<|im_end|>"], max_gen_toks: 96, do_sample: false}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
""")
(out / "numbers_choice.yaml").write_text("task: numbers_choice\noutput_type: multiple_choice\n" + common + """doc_to_text: "{{question}}"
doc_to_choice: choices
doc_to_target: 0
target_delimiter: ""
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
""")
END
}

case "${1:-}" in
  "") ;;
  --data) write_data "${2:?a folder}"; exit ;;
  *) sed -n '2,6p' "$0" | sed 's/^# \{0,1\}//'; exit 2 ;;
esac

program=${BALTORO:-build/release/apps/baltoro}
bin=build/other_clients/venv/bin
work=$(mktemp -d)
tools/venv.sh build/other_clients/venv tests/other_clients.txt
write_data "$work/data"
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 HF_HOME=$work/hf

"$program" serve --host 127.0.0.1 --port 0 2>"$work/server.log" &
server=$!
trap 'kill $server; wait $server || true; rm -rf "$work"' EXIT
for _ in $(seq 300); do
  url=$(grep -o 'Ready: http[^ ]*' "$work/server.log" | cut -d' ' -f2) && break
  sleep 0.1
done
tokenizer=$PWD/pocket/model

# finish NAME EXPECTED COMMAND...: the command ends well within three minutes, and says what matches EXPECTED.
finish() {
  local name=$1 expected=$2
  shift 2
  if ! timeout 180 "$@" >"$work/$name.log" 2>&1 || ! grep -qE "$expected" "$work/$name.log"; then
    tail -40 "$work/$name.log"
    echo "$name did not finish, or did not say: $expected" >&2
    exit 1
  fi
  echo "$name: finished"
}
ask() { "$bin/lm-eval" run --include_path "$work/data" "$@"; }
export -f ask; export bin work
finish lm-eval-chat 'exact_match\|[^|]*\| *1\|' bash -c 'ask "$@"' - --tasks numbers --model local-chat-completions --apply_chat_template \
  --model_args "model=pocket,base_url=$url/v1/chat/completions,num_concurrent=4" --gen_kwargs reasoning_effort=none
for form in tokenized_requests=True tokenized_requests=False; do
  finish "lm-eval-choice-$form" 'acc *\|[^|]*\| *0\.[23][0-9]*\|' bash -c 'ask "$@"' - --tasks numbers_choice --batch_size 4 \
    --model local-completions --model_args "model=pocket,base_url=$url/v1/completions,tokenizer=$tokenizer,num_concurrent=2,$form"
done
finish evalscope-eval 'GSM8K .*27 .*100%' "$bin/evalscope" eval --model pocket --api-url "$url/v1" --api-key none --eval-type openai_api \
  --datasets gsm8k --dataset-args "{\"gsm8k\": {\"dataset_id\": \"$work/data/gsm8k\", \"subset_list\": [\"default\"], \"few_shot_num\": 0, \"prompt_template\": \"{question}\"}}" \
  --generation-config '{"max_tokens": 300, "temperature": 0}' --eval-batch-size 4 --work-dir "$work/evalscope"
finish evalscope-perf 'Completion tok/s' "$bin/evalscope" perf --model pocket --url "$url/v1/chat/completions" --api openai \
  --dataset openqa --dataset-path "$work/data/numbers.jsonl" --number 12 --parallel 2 --max-tokens 64 --tokenizer-path "$tokenizer" \
  --outputs-dir "$work/evalscope-perf"
# (aiperf takes a folder for a name of the hub where it is told to stay offline.)
finish aiperf 'Benchmark Duration' env -u HF_HUB_OFFLINE "$bin/aiperf" profile -m pocket --url "$url" --endpoint-type chat --streaming --tokenizer "$tokenizer" \
  --isl 100 --osl 32 --extra-inputs ignore_eos:true --use-server-token-count --concurrency 2 --request-count 10 \
  --artifact-dir "$work/aiperf" --ui none
