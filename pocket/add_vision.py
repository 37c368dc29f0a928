#!/usr/bin/env python3
"""Puts an encoder that train_vision.py wrote, or the mean of several, beside the text model: matrices in fewer bits of mantissa, so that an archive packs them well.

    python3 pocket/add_vision.py DIR [DIR ...] --bits 1
    XZ_OPT=--lzma2=preset=9e,dict=64MiB,lc=1,lp=1,pb=1 tar -C pocket/model --sort=name --owner=0 --group=0 --mtime=2026-01-01 -cJf pocket/vision.tar.xz model-vision.safetensors
"""
import argparse
import json
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import vision  # noqa: E402

# As K2.5's but for the limits: larger pictures are scaled down to what it was trained on.
PREPROCESSOR = {"media_proc_cfg": {
    "in_patch_limit": 256, "patch_size": 14, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "merge_kernel_size": 2, "fixed_output_tokens": None,
    "patch_limit_on_one_side": 16, "in_patch_limit_each_frame": 256, "in_patch_limit_video": None, "sample_fps": 2.0, "max_num_frames_each_video": None,
    "temporal_merge_kernel_size": 4, "timestamp_mode": "hh:mm:ss.fff"}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", help="as train_vision.py writes them")
    parser.add_argument("--bits", type=int, default=1, choices=range(1, 8), help="of mantissa")
    parser.add_argument("--out", default=pathlib.Path(__file__).resolve().parent / "model", type=pathlib.Path)
    args = parser.parse_args()
    sight = vision.load_sight(args.folders[0])
    others = [vision.load_sight(folder).state_dict() for folder in args.folders[1:]]
    with torch.no_grad():
        for name, value in sight.state_dict().items():
            value.copy_((value + sum(other[name] for other in others)) / len(args.folders))
    vision.save_sight(sight, args.out / vision.SHARD, args.bits)
    index_file, config_file = args.out / "model.safetensors.index.json", args.out / "config.json"
    index, config = json.loads(index_file.read_text()), json.loads(config_file.read_text())
    names = set(sight.state_dict())
    if not names & set(index["weight_map"]):
        index["metadata"]["total_size"] += 2 * sum(p.numel() for p in sight.state_dict().values())
    index["weight_map"] = dict(sorted({**index["weight_map"], **{name: vision.SHARD for name in names}}.items()))
    index_file.write_text(json.dumps(index, indent=1) + "\n")
    config_file.write_text(json.dumps({**config, "vision_config": vision.CONFIG}, indent=2) + "\n")
    (args.out / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR, indent=1) + "\n")


if __name__ == "__main__":
    main()
