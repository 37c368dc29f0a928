#!/usr/bin/env python3
"""A running server's log-probabilities of the pocket model beside those of `transformers` on the same machine.

    python3 tests/golden/on_card.py [--url http://127.0.0.1:8000] [--prompts 50] [--device cuda|cpu]

Needs torch and transformers, of which the versions are printed, and a server of pocket/model. The texts are prompts of
tests/golden/pocket_greedy.json.gz with their recorded answers. transformers computes each text in float32 and in bfloat16, the
server tells the log-probability of each of its tokens (`prompt_logprobs`) twice: one text at a time, and all at once.

The yardstick is transformers itself: its bfloat16 lies so far from its float32. The server, which rounds in fewer places, may be no
farther from float32 than 1.25 times that, on average, and choose as float32 does in no fewer than half a percent less of the places.
"""
import argparse
import concurrent.futures
import gzip
import json
import math
import pathlib
import sys
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))


def texts(count):
    golden = json.loads(gzip.decompress((ROOT / "tests/golden/pocket_greedy.json.gz").read_bytes()))
    prompts = golden["prompts"]
    chosen = prompts[:: max(1, len(prompts) // count)][:count]
    return [prompt["ids"] + prompt["float32"]["tokens"] for prompt in chosen]


def from_transformers(ids_of_texts, dtype, device):
    """For each text, (log-probability of the token, most likely token) of every place but the first."""
    import torch
    from record_pocket_golden import reference_model
    # As a server, which sums products in float32 and does not round operands of float32 further.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    model = reference_model(getattr(torch, dtype)).to(device)
    out = []
    with torch.no_grad():
        for ids in ids_of_texts:
            logits = model(torch.tensor([ids], device=device), use_cache=False).logits[0, :-1].float()
            logprobs = logits.log_softmax(-1)
            own = logprobs.gather(1, torch.tensor(ids[1:], device=device)[:, None])[:, 0]
            out.append((own.tolist(), logits.argmax(-1).tolist()))
    return out


def from_server(url, ids):
    body = {"prompt": ids, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 1}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        places = json.load(response)["choices"][0]["prompt_logprobs"]
    assert len(places) == len(ids) and places[0] is None, "one entry for each token, none for the first"
    own = [place[str(token)]["logprob"] for place, token in zip(places[1:], ids[1:])]
    best = [next(int(token) for token, one in place.items() if one["rank"] == 1) for place in places[1:]]
    return own, best


def compare(name, got, want):
    """Mean and largest difference of log-probabilities, and how often both prefer the same token."""
    differences, same, count = [], 0, 0
    for (own, best), (wanted, wanted_best) in zip(got, want):
        differences += [abs(a - b) for a, b in zip(own, wanted)]
        same += sum(a == b for a, b in zip(best, wanted_best))
        count += len(best)
    if not all(math.isfinite(difference) for difference in differences):
        sys.exit(f"{name}: a log-probability is no number")
    ordered = sorted(differences)
    mean = sum(differences) / count
    print(f"{name}: {count} tokens; log-probabilities differ by {mean:.5f} on average, {ordered[int(0.99 * count)]:.4f} in 99 of 100, "
          f"{ordered[-1]:.4f} at most; {100 * same / count:.2f} % the same best token")
    return mean, same / count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--device", help="of transformers; a GPU if there is one")
    options = parser.parse_args()
    import torch
    import transformers
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if device == "cuda" else "a CPU"
    print(f"transformers {transformers.__version__}, torch {torch.__version__} on {name}")
    ids_of_texts = texts(options.prompts)

    alone = [from_server(options.url, ids) for ids in ids_of_texts]
    with concurrent.futures.ThreadPoolExecutor(len(ids_of_texts)) as pool:
        together = list(pool.map(lambda ids: from_server(options.url, ids), ids_of_texts))
    exact = from_transformers(ids_of_texts, "float32", device)
    rounded = from_transformers(ids_of_texts, "bfloat16", device)

    mean, same = compare("transformers in bfloat16 and in float32", rounded, exact)
    compare("the server, alone, and transformers in bfloat16", alone, rounded)
    compare("the server, together and alone", together, alone)
    failed = False
    for what, got in (("alone", alone), ("together", together)):
        here_mean, here_same = compare(f"the server, {what}, and transformers in float32", got, exact)
        failed |= not here_mean <= 1.25 * mean or here_same < same - 0.005
    if failed:
        sys.exit("FAILED: the server is farther from float32 than transformers in bfloat16")


if __name__ == "__main__":
    main()
