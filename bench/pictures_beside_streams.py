#!/usr/bin/env python3
"""The gaps between the tokens of streams, alone and while requests with a picture each arrive.

    bench/slice_model.py Kimi-K2-Thinking --ranks 8 --out /tmp/slice
    bench/pictures_beside_streams.py --program build/release/apps/baltoro --slice /tmp/slice --side 1024 --rate 8 [-- FLAGS OF SERVE]

The server gets the slice as the text model of a Kimi K2.5 whose encoder has its full size (random weights). With --text requests come too that
have as many tokens of text instead of a picture, which is what encoding is to be compared with: their prompts stop streams just so.
"""
import argparse
import base64
import http.client
import json
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib

POCKET = pathlib.Path(__file__).resolve().parents[1] / "pocket/model"
VISION = {"patch_size": 14, "init_pos_emb_height": 64, "init_pos_emb_width": 64, "init_pos_emb_time": 4, "merge_kernel_size": [2, 2], "merge_type": "sd2_tpool",
          "mm_hidden_size": 1152, "mm_projector_type": "patchmerger", "pos_emb_type": "divided_fixed", "projector_hidden_act": "gelu", "projector_ln_eps": 1e-5,
          "video_attn_type": "spatial_temporal", "vt_hidden_size": 1152, "vt_intermediate_size": 4304, "vt_num_attention_heads": 16, "vt_num_hidden_layers": 27}
RULES = {"media_proc_cfg": {"in_patch_limit": 16384, "patch_size": 14, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "merge_kernel_size": 2,
                            "fixed_output_tokens": None, "patch_limit_on_one_side": 512}}


def with_encoder(text_folder, out):
    """A folder of K2.5 around the text model of another."""
    text = json.loads((text_folder / "config.json").read_text())
    pocket = json.loads((POCKET / "config.json").read_text())
    shift = text["eos_token_id"] - pocket["eos_token_id"]
    whole = {key: value + shift if key.endswith("_token_id") else value for key, value in pocket.items()}
    whole |= {"text_config": text, "vision_config": VISION | {"text_hidden_size": text["hidden_size"]}}
    for file in text_folder.iterdir():
        (out / file.name).symlink_to(file.resolve())
    (out / "config.json").unlink()
    (out / "config.json").write_text(json.dumps(whole))
    (out / "preprocessor_config.json").write_text(json.dumps(RULES))


def png(side, number):
    """No two are alike."""
    row = bytes((x * 7 + number * 31) & 255 for x in range(3 * side))
    lines = b"".join(b"\0" + row[y % 97:] + row[:y % 97] for y in range(side))
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))  # noqa: E731
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(lines, 1)) + chunk(b"IEND", b"")


class Streams:
    """Requests that decode on and on, and the gaps between their tokens: (time, seconds)."""

    def __init__(self, address, count):
        self.address, self.gaps, self.stop = address, [], threading.Event()
        for _ in range(count):
            threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while not self.stop.is_set():
            connection = http.client.HTTPConnection(*self.address)
            prompt = [random.randrange(300, 2000) for _ in range(200)]
            connection.request("POST", "/v1/completions", json.dumps({"model": "m", "prompt": prompt, "max_tokens": 8000, "ignore_eos": True, "temperature": 1,
                                                                      "stream": True}), {"Content-Type": "application/json"})
            answer, last = connection.getresponse(), None
            while not self.stop.is_set() and (line := answer.readline()):
                if line.startswith(b"data: {"):
                    now = time.monotonic()
                    if last:
                        self.gaps.append((now, now - last))
                    last = now
            connection.close()

    def report(self, name, begin, end):
        gaps = sorted(gap for at, gap in list(self.gaps) if begin < at < end)
        if not gaps:
            sys.exit("the streams gave no token")
        of = lambda share: 1e3 * gaps[min(len(gaps) - 1, int(len(gaps) * share))]  # noqa: E731
        print(f"{name}: {len(gaps)} gaps, median {of(0.5):.2f} ms, p99 {of(0.99):.2f} ms, most {1e3 * gaps[-1]:.2f} ms", flush=True)
        return of(0.99)


def ask(address, body, taken):
    begin = time.monotonic()
    connection = http.client.HTTPConnection(*address)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    said = answer.read()
    if answer.status != 200:
        print(answer.status, said[:300])
    else:
        taken.append((time.monotonic() - begin, json.loads(said)["usage"]["prompt_tokens"]))


def bodies(args, side, text):
    for number in range(args.requests):
        if text:
            digits = random.Random(number)  # no prompt is the begin of another: the prefix cache knows none
            tokens = (-(-side // 28)) ** 2
            content = " ".join(str(digits.randrange(10)) for _ in range(tokens // 2))  # a digit and a blank are two tokens
        else:
            url = "data:image/png;base64," + base64.b64encode(png(side, number)).decode()
            content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What?"}]
        yield {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": content}]}


def beside(args, address, streams, alone, side, text):
    asked, taken, threads = list(bodies(args, side, text)), [], []
    begin = time.monotonic()
    for body in asked:
        threads.append(threading.Thread(target=ask, args=(address, body, taken)))
        threads[-1].start()
        time.sleep(1 / args.rate)
    for thread in threads:
        thread.join()
    end = time.monotonic()
    p99 = streams.report(f"beside {args.requests} {'texts as long as pictures' if text else 'pictures'} of {side} x {side}", begin, end)
    if len(taken) < args.requests:
        sys.exit("not all requests were answered")
    seconds = sorted(one[0] for one in taken)
    print(f"  p99 {p99 / alone:.2f} times that alone; prompts of {sum(one[1] for one in taken) / len(taken):.0f} tokens; "
          f"they took {seconds[len(seconds) // 2]:.2f} s (median), {seconds[-1]:.2f} s (most), together {end - begin:.1f} s", flush=True)


def measure(args, address):
    streams = Streams(address, args.streams)
    time.sleep(args.seconds)  # what begins together is over
    begin = time.monotonic()
    time.sleep(args.seconds)
    alone = streams.report("alone", begin, time.monotonic())
    for side in args.side:
        for text in [False, True][: 1 + args.text]:
            beside(args, address, streams, alone, side, text)
    streams.stop.set()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--slice", type=pathlib.Path, required=True, help="as slice_model.py writes it")
    parser.add_argument("--side", type=int, nargs="+", default=[1792], help="pixels; several: one after the other")
    parser.add_argument("--rate", type=float, default=4, help="requests a second")
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=5, help="without them")
    parser.add_argument("--text", action="store_true")
    parser.add_argument("flags", nargs="*", help="of serve")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        with_encoder(args.slice, pathlib.Path(folder))
        log = pathlib.Path(folder) / "server.log"
        command = [args.program, "serve", folder, "--load-format", "dummy", "--model-loader-extra-config", '{"alike_layers": true}', "--host", "127.0.0.1", "--port", "0",
                   "--max-model-len", "16384", "--max-num-seqs", "64", "--served-model-name", "m", *args.flags]
        with log.open("w") as out:
            server = subprocess.Popen(command, stderr=out)
        try:
            until = time.monotonic() + 300
            while not (found := re.search(r"Ready: http://([\d.]+):(\d+)", log.read_text())):
                if server.poll() is not None or time.monotonic() > until:
                    sys.exit("the server did not start:\n" + log.read_text())
                time.sleep(0.2)
            measure(args, (found[1], int(found[2])))
        finally:
            server.terminate()
            server.wait(60)


if __name__ == "__main__":
    main()
