#!/usr/bin/env python3
"""One step of the same model in step_bench and in llama.cpp, alternating in one run.

    pip install llama-cpp-python gguf
    bench/step_vs_llama.py --step-bench build/release/bench/step_bench

Writes random weights of the shapes that step_bench uses (architecture deepseek2) to a GGUF file,
loads both programs, and then lets them take turns: decode at batch 1, 8 and 32, prefill of 512
tokens. Both choose experts by their own random weights, so evenly; both use every CPU. The figures
are medians over all turns. (llama.cpp takes a plain query projection only from models of certain
depths, so both make queries through a low-rank one here.)

Beside the forms of step_bench stand llama.cpp's of nearly the same size: int4 (experts in groups of
32 with a scale, the rest BF16) beside experts in Q4_0; w4a8 (experts in 4 bits, the rest in 8)
beside Q4_0 and Q8_0. llama.cpp rounds activations to 8 bits for both of its forms.
"""

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time

import gguf
import llama_cpp
import numpy as np

HIDDEN, HEADS, LATENT, ROPE, NOPE, VALUE = 2048, 16, 512, 64, 128, 128
Q_RANK = 1536
DENSE, EXPERT, EXPERTS, SHARED, TOP_K = 11264, 1408, 64, 2, 6
CONTEXT = 256  # tokens that a sequence has when decoding starts, as in step_bench

TYPE = gguf.GGMLQuantizationType
TYPES = {  # of the experts, of the other matrices of layers (attn_k_b and attn_v_b stay BF16)
    "bf16": (TYPE.BF16, TYPE.BF16),
    "int4": (TYPE.Q4_0, TYPE.BF16),
    "w4a8": (TYPE.Q4_0, TYPE.Q8_0),
}


def write_gguf(path, layers, vocab, form):
    rng = np.random.default_rng(1)
    experts, others = TYPES[form]
    # One block of numbers serves all tensors, each from another place in it.
    noise = rng.uniform(-1, 1, 1 << 22).astype(np.float32)
    coded = {}
    writer = gguf.GGUFWriter(path, "deepseek2")

    def norm(name, size):
        writer.add_tensor(name, np.ones(size, np.float32))

    def weights(name, *shape, kind=TYPE.BF16):
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        key = (kind, shape[-1])
        if key not in coded:
            scale = np.float32((3.0 / shape[-1]) ** 0.5)
            coded[key] = gguf.quants.quantize(noise * scale, kind).view(np.uint8).reshape(-1, block_bytes)
        count = int(np.prod(shape)) // block
        turned = np.roll(coded[key], int(rng.integers(len(coded[key]))), axis=0)
        data = np.resize(turned, (count, block_bytes))
        data = data.reshape(*shape[:-1], shape[-1] // block * block_bytes)
        writer.add_tensor(name, data, raw_dtype=kind)

    writer.add_context_length(8192)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(DENSE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(50000.0)
    writer.add_rope_dimension_count(ROPE)
    writer.add_q_lora_rank(Q_RANK)
    writer.add_kv_lora_rank(LATENT)
    writer.add_key_length(LATENT + ROPE)
    writer.add_value_length(LATENT)
    writer.add_key_length_mla(NOPE + ROPE)
    writer.add_value_length_mla(VALUE)
    writer.add_leading_dense_block_count(1)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(TOP_K)
    writer.add_expert_shared_count(SHARED)
    writer.add_expert_feed_forward_length(EXPERT)
    writer.add_expert_weights_scale(2.446)
    writer.add_expert_weights_norm(True)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_vocab_size(vocab)
    writer.add_tokenizer_model("none")

    weights("token_embd.weight", vocab, HIDDEN)
    norm("output_norm.weight", HIDDEN)
    weights("output.weight", vocab, HIDDEN)
    for layer in range(layers):
        at = f"blk.{layer}."
        norm(at + "attn_norm.weight", HIDDEN)
        weights(at + "attn_q_a.weight", Q_RANK, HIDDEN, kind=others)
        norm(at + "attn_q_a_norm.weight", Q_RANK)
        weights(at + "attn_q_b.weight", HEADS * (NOPE + ROPE), Q_RANK, kind=others)
        weights(at + "attn_kv_a_mqa.weight", LATENT + ROPE, HIDDEN, kind=others)
        norm(at + "attn_kv_a_norm.weight", LATENT)
        weights(at + "attn_k_b.weight", HEADS, LATENT, NOPE)
        weights(at + "attn_v_b.weight", HEADS, VALUE, LATENT)
        weights(at + "attn_output.weight", HIDDEN, HEADS * VALUE, kind=others)
        norm(at + "ffn_norm.weight", HIDDEN)
        if layer == 0:
            weights(at + "ffn_gate.weight", DENSE, HIDDEN, kind=others)
            weights(at + "ffn_up.weight", DENSE, HIDDEN, kind=others)
            weights(at + "ffn_down.weight", HIDDEN, DENSE, kind=others)
            continue
        router = rng.normal(0, HIDDEN**-0.5, (EXPERTS, HIDDEN)).astype(np.float32)
        writer.add_tensor(at + "ffn_gate_inp.weight", router)
        writer.add_tensor(at + "exp_probs_b.bias", np.zeros(EXPERTS, np.float32))
        weights(at + "ffn_gate_exps.weight", EXPERTS, EXPERT, HIDDEN, kind=experts)
        weights(at + "ffn_up_exps.weight", EXPERTS, EXPERT, HIDDEN, kind=experts)
        weights(at + "ffn_down_exps.weight", EXPERTS, HIDDEN, EXPERT, kind=experts)
        weights(at + "ffn_gate_shexp.weight", SHARED * EXPERT, HIDDEN, kind=others)
        weights(at + "ffn_up_shexp.weight", SHARED * EXPERT, HIDDEN, kind=others)
        weights(at + "ffn_down_shexp.weight", HIDDEN, SHARED * EXPERT, kind=others)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Llama:
    def __init__(self, path, threads, vocab, quiet=True):
        self.vocab = vocab
        self.rng = np.random.default_rng(2)
        if quiet:
            self.log = llama_cpp.llama_log_callback(lambda level, text, data: None)
            llama_cpp.llama_log_set(self.log, ctypes.c_void_p())
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.use_mmap = False
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), params)
        if not self.model:
            sys.exit("llama.cpp refuses " + path)
        self.threads = threads

    def context(self, sequences, tokens_each):
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = max(512, sequences * tokens_each)
        params.n_batch = params.n_ubatch = 512
        params.n_seq_max = sequences
        params.n_threads = params.n_threads_batch = self.threads
        params.kv_unified = True
        context = llama_cpp.llama_init_from_model(self.model, params)
        if not context:
            sys.exit("llama.cpp makes no context")
        return context

    def step(self, context, sequences, position, count):
        """The next `count` tokens of each sequence; the logits of the last one of each."""
        total = len(sequences) * count
        batch = llama_cpp.llama_batch_init(total, 0, 1)
        batch.n_tokens = total
        for i in range(total):
            batch.token[i] = int(self.rng.integers(self.vocab))
            batch.pos[i] = position + i % count
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequences[i // count]
            batch.logits[i] = i % count == count - 1
        start = time.perf_counter()
        if llama_cpp.llama_decode(context, batch) != 0:
            sys.exit("llama.cpp cannot decode")
        llama_cpp.llama_get_logits_ith(context, total - 1)
        seconds = time.perf_counter() - start
        llama_cpp.llama_batch_free(batch)
        return seconds

    def decode(self, batch, steps):
        context = self.context(batch, CONTEXT + steps + 2)
        for s in range(batch):
            self.step(context, [s], 0, CONTEXT)
        everyone = list(range(batch))
        seconds = [self.step(context, everyone, CONTEXT + i, 1) for i in range(steps + 1)][1:]
        llama_cpp.llama_free(context)
        return statistics.median(seconds)

    def prefill(self, tokens, rounds):
        context = self.context(1, tokens)
        seconds = []
        for _ in range(rounds + 1):
            llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
            seconds.append(self.step(context, [0], 0, tokens))
        llama_cpp.llama_free(context)
        return statistics.median(seconds[1:])


class StepBench:
    def __init__(self, program, layers, vocab, threads, form):
        self.process = subprocess.Popen(
            [program, "--serve", f"--layers={layers}", f"--vocab={vocab}", f"--threads={threads}",
             f"--q-lora={Q_RANK}", f"--form={form}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, command):
        print(command, file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            sys.exit("step_bench ended")
        return json.loads(line)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--step-bench", required=True)
    parser.add_argument("--gguf", default="/tmp/baltoro-step.gguf")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocab", type=int, default=163840)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--form", choices=TYPES, default="bf16")
    args = parser.parse_args()

    wanted = f"{args.layers} {args.vocab} {Q_RANK} {args.form}"
    stamp = args.gguf + ".shape"
    if not os.path.exists(args.gguf) or open(stamp).read() != wanted:
        write_gguf(args.gguf, args.layers, args.vocab, args.form)
        with open(stamp, "w") as file:
            file.write(wanted)
    ours = StepBench(args.step_bench, args.layers, args.vocab, args.threads, args.form)
    peak = ours.ask("peak")["gflops"]
    theirs = Llama(args.gguf, args.threads, args.vocab)

    cases = [("decode", 1, 20), ("decode", 8, 10), ("decode", 32, 6), ("prefill", 512, 3)]
    seconds = {case: ([], []) for case in cases}
    facts = {}
    reads = []
    for _ in range(args.turns):
        reads.append(ours.ask("read")["gbps"])
        for case in cases:
            what, size, rounds = case
            facts[case] = ours.ask(f"{what} {size} {rounds}")
            seconds[case][0].append(facts[case]["seconds"])
            seconds[case][1].append(getattr(theirs, what)(size, rounds))
    reads.append(ours.ask("read")["gbps"])
    read = statistics.median(reads)

    version = llama_cpp.__version__
    print(f"{args.form}, {args.threads} threads; reads {read:.1f} GB/s, products {peak:.0f} GFLOP/s; "
          f"llama-cpp-python {version}")
    print(f"{'step':<14} {'ours ms':>9} {'llama ms':>9} {'ratio':>6}  of the ceiling")
    for case in cases:
        what, size, _ = case
        own, other = (statistics.median(values) for values in seconds[case])
        if what == "decode":
            rate = facts[case]["bytes"] / own * 1e-9
            share = f"{rate:.1f} GB/s, {100 * rate / read:.0f}% of reads"
        else:
            rate = facts[case]["flops"] / own * 1e-9
            share = (f"{size / own:.0f} tokens/s (llama {size / other:.0f}), {rate:.0f} GFLOP/s, "
                     f"{100 * rate / peak:.0f}% of products")
        print(f"{what + ' ' + str(size):<14} {own * 1e3:>9.2f} {other * 1e3:>9.2f} "
              f"{other / own:>6.2f}  {share}")


if __name__ == "__main__":
    main()
