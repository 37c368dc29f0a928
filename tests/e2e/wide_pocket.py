"""The pocket model with more heads and wider layers that are zero: the same function, but eight ranks can cut it in
every weight format. A rank of eight gets one head of the model and one that says nothing, and an eighth of the
columns of each layer in a block of 128."""
import json
import pathlib
import re
import shutil
import struct

import numpy

HEADS, WIDTH, RANKS = 16, 1024, 8
KINDS = {"BF16": numpy.uint16, "F32": numpy.float32, "I64": numpy.int64, "BOOL": numpy.bool_}  # of bf16 its bits: 0 is zero


def spread(tensor, axis, group, wide):
    """`group` rows (or columns) of every `wide` hold what was there, the others are zero."""
    shape = list(tensor.shape)
    assert shape[axis] % group == 0
    blocks = shape[axis] // group
    parts = tensor.reshape(*shape[:axis], blocks, group, *shape[axis + 1:])
    widths = [(0, 0)] * parts.ndim
    widths[axis + 1] = (0, wide - group)
    return numpy.pad(parts, widths).reshape(*shape[:axis], blocks * wide, *shape[axis + 1:])


def widen(name, tensor):
    block = WIDTH // RANKS
    if name.endswith("q_b_proj.weight"):
        return spread(tensor, 0, 192, 2 * 192)
    if name.endswith("kv_b_proj.weight"):
        return spread(tensor, 0, 256, 2 * 256)
    if name.endswith("o_proj.weight"):
        return spread(tensor, 1, 128, 2 * 128)
    if re.search(r"mlp\..*(gate|up)_proj\.weight$", name):
        return spread(tensor, 0, tensor.shape[0] // RANKS, block)
    if re.search(r"mlp\..*down_proj\.weight$", name):
        return spread(tensor, 1, tensor.shape[1] // RANKS, block)
    return tensor


def read_safetensors(path):
    data = path.read_bytes()
    length, = struct.unpack_from("<Q", data)
    for name, entry in json.loads(data[8:8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        kind = KINDS[entry["dtype"]]
        yield name, entry["dtype"], numpy.frombuffer(data[begin:end], kind).reshape(entry["shape"])


def write_safetensors(path, tensors):
    header, offset = {}, 0
    for name, dtype, tensor in tensors:
        header[name] = {"dtype": dtype, "shape": tensor.shape, "data_offsets": [offset, offset + tensor.nbytes]}
        offset += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, tensor in tensors:
            file.write(tensor.tobytes())


def make_wide_pocket(source: pathlib.Path, target: pathlib.Path):
    target.mkdir(parents=True)
    tensors = [(name, dtype, widen(name, tensor)) for shard in sorted(source.glob("*.safetensors"))
               for name, dtype, tensor in read_safetensors(shard)]
    write_safetensors(target / "model.safetensors", tensors)
    for path in source.iterdir():
        if "safetensors" not in path.name and path.name != "config.json":
            shutil.copy(path, target)
    config = json.loads((source / "config.json").read_text())
    config["text_config"].update(num_attention_heads=HEADS, num_key_value_heads=HEADS, intermediate_size=WIDTH,
                                 moe_intermediate_size=WIDTH)
    (target / "config.json").write_text(json.dumps(config, indent=2))
