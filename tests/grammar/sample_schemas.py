#!/usr/bin/env python3
"""Random values that the grammars of schemas allow, judged by Python's jsonschema.

sample_schemas.py PROBE FOLDER [--samples N] [--seed N]: for every schema of FOLDER/*.json and *.json.gz, N texts are drawn from its
grammar. Each must be JSON without repeated declared keys, and valid. Schemas of which something is not enforced are
drawn from too, but only have to give JSON.
"""
import argparse
import decimal
import gzip
import json
import pathlib
import subprocess
import sys

import jsonschema


def load(text):
    def pairs(items):
        return dict(items)
    return json.loads(text, object_pairs_hook=pairs, parse_constant=lambda name: sys.exit(f"{name} in {text!r}"))


def multiple_of(validator, factor, value, schema):
    """As the standard says it; jsonschema divides doubles, to which 19.99 is no multiple of 0.01."""
    if validator.is_type(value, "number") and decimal.Decimal(str(value)) % decimal.Decimal(str(factor)) != 0:
        yield jsonschema.ValidationError(f"{value} is not a multiple of {factor}")


def judge(schema):
    cls = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    cls = jsonschema.validators.extend(cls, {"multipleOf": multiple_of})
    return cls(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("probe")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--samples", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    schemas = drawn = cut = unchecked = 0
    bad = []
    for path in sorted(options.folder.iterdir()):
        cases = json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_text())
        run = subprocess.run([options.probe, path, str(options.samples), str(options.seed)], capture_output=True,
                             text=True, check=True)
        for line in run.stdout.rstrip("\n").split("\n"):  # not splitlines, which knows more line ends
            line = json.loads(line)
            case = cases[line["index"]]
            if "error" in line:
                if case.get("valid") or case.get("examples"):
                    bad.append((case["name"], line["error"]))
                continue
            schemas += 1
            unchecked += bool(line["unchecked"])
            validator = judge(case["schema"])
            for text in line["samples"]:
                drawn += 1
                if text == "cut":
                    cut += 1
                    continue
                try:
                    value = load(text)
                except (json.JSONDecodeError, RecursionError) as error:
                    bad.append((case["name"], f"{text[:200]!r}: {error}"))
                    continue
                if line["unchecked"]:
                    continue
                wrong = next(validator.iter_errors(value), None)
                if wrong is not None:
                    bad.append((case["name"], f"{text[:300]!r}: {wrong.message[:200]}"))
    for name, what in bad[:40]:
        print(f"{name}: {what}")
    print(f"{schemas} schemas ({unchecked} not wholly enforced), {drawn} texts, {cut} cut, {len(bad)} bad")
    if bad or schemas < 200 or cut * 20 > drawn:
        sys.exit(1)


main()
