"""An Eagle3 draft of random weights for a model of random weights: as often right as chance has it, among the tokens of JSON."""
import base64
import json
import pathlib
import sys

import numpy
from wide_pocket import write_safetensors

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "golden/eagle3"))
import make_eagle3  # noqa: E402

# What most of an answer in JSON is made of.
OFTEN = set(b'{}[]":, 0123456789-.truefalsn')


def tokens_of_json(vocabulary):
    """Ids of single bytes, rising, of a tiktoken.model."""
    for line in vocabulary.read_text().splitlines():
        text, number = line.split()
        token = base64.b64decode(text)
        if len(token) == 1 and token[0] in OFTEN:
            yield int(number)


def bf16(values):
    return (values.view(numpy.uint32) >> numpy.uint32(16)).astype(numpy.uint16)


def write_draft(folder, config, weights, more=()):
    """`weights`: name to a float32 array of bfloat16 values; `more`: (name, type, array)."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    write_safetensors(folder / "model.safetensors", [(name, "BF16", bf16(value)) for name, value in weights.items()] + list(more))


def random_draft(target, taps, **changes):
    """(config.json, weights) of a draft of Llama's type for a target with this text config."""
    config = dict(make_eagle3.LLAMA, hidden_size=target["hidden_size"], vocab_size=target["vocab_size"],
                  max_position_embeddings=target["max_position_embeddings"],
                  eagle_config={"eagle_aux_hidden_state_layer_ids": taps}, **changes)
    shapes = make_eagle3.shapes(config)
    shapes["fc.weight"] = (config["hidden_size"], len(taps) * config["hidden_size"])
    return config, {name: make_eagle3.weight(name, shape) for name, shape in shapes.items()}


def make_random_draft(folder, target, taps, vocabulary):
    ids = numpy.array(sorted(tokens_of_json(vocabulary)), "<i8")
    config, weights = random_draft(target, taps, draft_vocab_size=len(ids))
    write_draft(folder, config, weights, [("d2t", "I64", ids - numpy.arange(len(ids)))])
