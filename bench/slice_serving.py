#!/usr/bin/env python3
"""Serves one tensor rank's slice of a model over HTTP, measures it with `bench serve`, and says what its step times predict.

    bench/slice_serving.py --program build/release/apps/baltoro --out DIR [--model Kimi-K2-Thinking] [--exchange 1:7.5,36:11,73:14]

First `bench step` times steps of the folder that is then served (as one of eight ranks it is computed by other kernels, since a
sum over ranks stands between its halves); then a server answers drawn prompts at several concurrencies. The prediction of a run: in
each wave all prompts are computed, as many in a step as its tokens allow (a step of so many tokens of one prompt is timed for it) and
the rest one by one, then every token of the answers in a step of all sequences, at the mean length of their contexts. With --exchange the
server is run again, and waits at each exchange of the ranks that are not there: times of that run are MODELLED. Writes DIR/slice_serving.json and the plots, and prints the tables. docs/measured/serving.md has them.
"""
import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
SHAPES = {"1k/1k": (1000, 1000, (1, 4, 16, 64, 256)), "8k/1k": (8000, 1000, (1, 4, 16, 64))}
STEP_TOKENS = 8192  # of the server: as many prompts as fit share a step
MODELLED = {"8k/1k": (8000, 1000, (4, 8, 16, 32, 64))}


def run(command, **options):
    print("+", " ".join(map(str, command)), flush=True)
    return subprocess.run([str(word) for word in command], check=True, **options)


class Server:
    def __init__(self, args, folder, flags):
        self.log = args.out / f"server{len(flags)}.log"
        command = [args.program, "serve", folder, "--load-format", "dummy", "--model-loader-extra-config", '{"alike_layers": true}', "--host", "127.0.0.1",
                   "--port", "0", "--max-model-len", "9216", "--max-num-seqs", "256", "--max-num-batched-tokens", STEP_TOKENS, "--served-model-name", "slice",
                   "--no-enable-prefix-caching", *args.serve_flags.split(), *flags]
        with self.log.open("w") as log:
            self.process = subprocess.Popen([str(word) for word in command], stderr=log)
        until = time.monotonic() + 300
        while not (found := re.search(r"Ready: (http\S+)", self.log.read_text())):
            if self.process.poll() is not None or time.monotonic() > until:
                sys.exit("the server did not start:\n" + self.log.read_text())
            time.sleep(0.2)
        self.url = found.group(1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def sweep(args, server, folder, shape, prompt, answer, concurrency, rounds, name):
    results = args.out / f"{name}.jsonl"
    results.unlink(missing_ok=True)
    run([args.program, "bench", "serve", "--base-url", server.url, "--model", "slice", "--tokenizer", folder, "--dataset-name", "random", "--random-input-len",
         prompt, "--random-output-len", answer, "--ignore-eos", "--temperature", "1", "--num-warmups", "1", "--disable-tqdm", "--sweep-prompts", rounds,
         "--sweep-concurrency", *concurrency, "--sweep-svg", args.out / f"{name}.svg", "--save-result", "--append-result", "--result-dir", args.out,
         "--result-filename", results.name, "--percentile-metrics", "ttft,tpot,itl,e2el"], stdout=(args.out / f"{name}.txt").open("w"))
    print(shape, (args.out / f"{name}.txt").read_text()[-1400:], flush=True)
    return [json.loads(line) for line in results.read_text().splitlines()]


def together(prompt):
    """How many prompts of this length share a step."""
    return max(STEP_TOKENS // prompt, 1)


def steps_of(args, folder, shapes):
    """{length of prompts: steps of the slice in `folder`, as `bench step --json` writes them}."""
    out = {}
    for number, (prompt, answer, concurrency) in enumerate(shapes.values()):
        file = args.out / f"steps{number}.json"
        run([args.program, "bench", "step", folder, "--batch", *concurrency, "--context", prompt + answer // 2, "--prefill",
             *sorted({prompt, prompt * together(prompt)}), "--repeats", 20, "--json", file, *args.step_flags.split()], stdout=(args.out / f"steps{number}.txt").open("w"))
        print((args.out / f"steps{number}.txt").read_text(), flush=True)
        out[prompt] = json.loads(file.read_text())
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.environ.get("BALTORO", "build/release/apps/baltoro"))
    parser.add_argument("--model", default="Kimi-K2-Thinking")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--layers", type=int, help="fewer, to try this on a small machine")
    parser.add_argument("--concurrency-max", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=2, help="requests of a run, for each one under way at once")
    parser.add_argument("--scale", type=float, default=1, help="of the lengths of prompts and answers, to try this on a small machine; the model stays, and --layers 2 of it are 1.9 GB")
    parser.add_argument("--exchange", help="as --modelled-exchange of serve; without it nothing is modelled")
    parser.add_argument("--serve-flags", default="")
    parser.add_argument("--step-flags", default="")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    def scaled(shapes):
        return {shape: (int(p * args.scale), int(a * args.scale), [c for c in cs if c <= args.concurrency_max]) for shape, (p, a, cs) in shapes.items()}

    layers = ["--layers", args.layers] if args.layers else []
    plain, modelled = scaled(SHAPES), scaled(MODELLED)
    with tempfile.TemporaryDirectory() as folder:
        run([sys.executable, HERE / "slice_model.py", args.model, "--ranks", args.ranks, *layers, "--out", folder])
        report = {"steps": steps_of(args, folder, plain), "runs": {}}
        with Server(args, folder, []) as server:
            for shape, (prompt, answer, concurrency) in plain.items():
                name = shape.replace("/", "-")
                report["runs"][shape] = sweep(args, server, folder, shape, prompt, answer, concurrency, args.rounds, name)
        if args.exchange:
            with Server(args, folder, ["--modelled-exchange", args.exchange]) as server:
                for shape, (prompt, answer, concurrency) in modelled.items():
                    name = "modelled-" + shape.replace("/", "-")
                    report["runs"]["MODELLED " + shape] = sweep(args, server, folder, shape, prompt, answer, concurrency, args.rounds, name)
    for runs in report["runs"].values():
        for one in runs:
            for key in [key for key, value in one.items() if isinstance(value, list)]:
                del one[key]
    (args.out / "slice_serving.json").write_text(json.dumps(report) + "\n")
    print_prediction(report, plain)


def print_prediction(report, shapes):
    print("\nseconds of a run: measured, predicted from step times (waves of prompts, then of steps)")
    for shape, (prompt, answer, concurrency) in shapes.items():
        rows = report["steps"][prompt]["steps"]
        prefill = {row["tokens"] // prompt: row["median_ms"] / 1e3 for row in rows if row["kind"] == "prefill"}
        packed = together(prompt)
        for one in report["runs"][shape]:
            c = one["max_concurrency"]
            step = next(row["median_ms"] for row in rows if row["kind"] == "decode" and row["tokens"] == c) / 1e3
            waves = one["num_prompts"] / c
            prompts = c // packed * prefill[packed] + c % packed * prefill[1]
            predicted = waves * (prompts + (answer - 1) * step)
            print(f"{shape} concurrency {c}: {one['duration']:.2f} {predicted:.2f} ({100 * (one['duration'] / predicted - 1):+.1f} %); "
                  f"TPOT {one['median_tpot_ms']:.2f} ms, step {1e3 * step:.2f} ms ({100 * (one['median_tpot_ms'] / step / 1e3 - 1):+.1f} %)")


if __name__ == "__main__":
    main()
