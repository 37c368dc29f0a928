#!/usr/bin/env python3
"""One step of the same model in each weight form, in turns, so that all forms see the same neighbours.

    bench/step_forms.py --step-bench build/release/bench/step_bench [--turns 3] [--layers 4]

Prints, for each form and step: the median time, the bytes a second of the weights and cache that the step must read, their share of
the streaming reads measured in the same turn, and the speed over bf16 as a share of what the ratio of those bytes allows.
"""
import argparse
import json
import statistics
import subprocess

FORMS = ["bf16", "fp8", "int4", "w4a8"]


class Bench:
    def __init__(self, program, form, layers):
        command = [program, "--serve", f"--form={form}", f"--layers={layers}"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--step-bench", required=True)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    benches = {form: Bench(options.step_bench, form, options.layers) for form in FORMS}

    def measure(command, work):
        """Per form: median seconds, work per call; and the median of the reads beside them."""
        seconds = {form: [] for form in FORMS}
        amount = {}
        reads = []
        for _ in range(options.turns):
            reads.append(benches["bf16"].ask("read")["gbps"])
            for form, bench in benches.items():
                answer = bench.ask(command)
                seconds[form].append(answer["seconds"])
                amount[form] = answer[work]
        return {form: statistics.median(seconds[form]) for form in FORMS}, amount, statistics.median(reads)

    print("| step | form | ms | GB/s | of reads | over bf16 | of what the bytes allow |")
    print("|---|---|---|---|---|---|---|")
    for batch in [1, 8, 32]:
        seconds, size, read = measure(f"decode {batch} {options.rounds}", "bytes")
        for form in FORMS:
            rate = size[form] / seconds[form] * 1e-9
            speed = seconds["bf16"] / seconds[form]
            share = speed / (size["bf16"] / size[form])
            print(f"| decode, batch {batch} | {form} | {seconds[form] * 1e3:.1f} | {rate:.1f} | {rate / read * 100:.0f} % "
                  f"| {speed:.2f} | {share * 100:.0f} % |", flush=True)
    seconds, flops, _ = measure("prefill 512 2", "flops")
    for form in FORMS:
        print(f"| prefill, 512 tokens | {form} | {seconds[form] * 1e3:.0f} ({flops[form] / seconds[form] * 1e-9:.0f} GFLOP/s) "
              f"| | | {seconds['bf16'] / seconds[form]:.2f} | |", flush=True)
    for bench in benches.values():
        bench.close()


if __name__ == "__main__":
    main()
