#!/usr/bin/env python3
"""What `baltoro bench serve` adds to the gaps between the chunks of 1,000 streams: `stream_clock` writes into each chunk when it wrote it.

    bench/client_adds.py --program build/release/apps/baltoro --server build/release/bench/stream_clock [--client-cores 0,1]
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--program", required=True)
parser.add_argument("--server", required=True)
parser.add_argument("--client-cores", help="as taskset takes them; the server gets --server-cores")
parser.add_argument("--server-cores")
parser.add_argument("--streams", type=int, default=1000)
parser.add_argument("--chunks", type=int, default=500)
parser.add_argument("--step-ms", type=int, default=20)
args = parser.parse_args()


def on(cores, command):
    return ["taskset", "-c", cores, *command] if cores else command


with tempfile.TemporaryDirectory() as folder:
    prompts = pathlib.Path(folder, "prompts.jsonl")
    prompts.write_text("".join(json.dumps({"prompt": f"p{i}"}) + "\n" for i in range(args.streams)))
    client = [args.program, "bench", "serve", "--port", "8777", "--model", "m", "--skip-tokenizer-init", "--dataset-name", "custom", "--dataset-path", prompts,
              "--num-prompts", args.streams, "--custom-output-len", args.chunks, "--skip-chat-template", "--disable-tqdm", "--save-result", "--save-detailed",
              "--result-dir", folder, "--result-filename", "r.json"]
    server = subprocess.Popen(on(args.server_cores, [args.server, "8777", str(args.chunks), str(args.step_ms)]))
    time.sleep(0.3)
    try:
        subprocess.run(on(args.client_cores, [str(word) for word in client]), check=True, stdout=subprocess.DEVNULL)
    finally:
        server.kill()
    result = json.loads(pathlib.Path(folder, "r.json").read_text())
added = []
if result["completed"] != args.streams:
    sys.exit(f"{args.streams - result['completed']} of {args.streams} streams failed")
for text, gaps in zip(result["generated_texts"], result["itls"]):
    written = [int(word) / 1e6 for word in text.split()]
    gaps = gaps[:len(written) - 1]  # the last gap is to the usage
    if len(gaps) != len(written) - 1:
        sys.exit(f"a stream of {len(written)} chunks has {len(gaps)} gaps: chunks were read together")
    added += [1e3 * gap - (after - before) for gap, before, after in zip(gaps, written, written[1:])]
added.sort()
count = len(added)
print(f"{result['completed']} of {args.streams} streams, {result['output_throughput']:.0f} tokens/s, {count} gaps: the client adds to a gap "
      f"{added[count // 2]:.3f} ms (median), {added[count * 99 // 100]:.3f} (p99), {added[count * 999 // 1000]:.3f} (p99.9), at most {added[-1]:.3f}, at least {added[0]:.3f}")
