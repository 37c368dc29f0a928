#!/usr/bin/env python3
"""Selects cases of the JSON Schema Test Suite for our tests: make_suite.py CHECKOUT | gzip -9n > schemas/suite.json.gz

Made from commit 44401e0c046704b476ec9d2e2fccdaee618f259d (2026-08-22). The suite is the work of its authors, under the MIT licence (https://github.com/json-schema-org/JSON-Schema-Test-Suite).
A case is a schema, and instances as texts that are valid or invalid by the suite and by Python's jsonschema. Left out:
what needs another document, what is not about validity, and instances that no writer of JSON would spell so.
"""
import json
import pathlib
import sys

import jsonschema

FILES = {
    "draft2020-12": """additionalProperties allOf anchor anyOf boolean_schema const contains content default defs
        dependentRequired dependentSchemas enum exclusiveMaximum exclusiveMinimum if-then-else infinite-loop-detection
        items maxContains maxItems maxLength maxProperties maximum minContains minItems minLength minProperties minimum
        multipleOf not oneOf pattern patternProperties prefixItems properties propertyNames ref required type
        unevaluatedItems unevaluatedProperties uniqueItems""".split(),
    "draft7": "additionalItems definitions dependencies items".split(),
    "draft4": "maximum minimum definitions".split(),
}
DIALECTS = {
    "draft2020-12": jsonschema.Draft202012Validator,
    "draft7": jsonschema.Draft7Validator,
    "draft4": jsonschema.Draft4Validator,
}

OLD = {
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft4": "http://json-schema.org/draft-04/schema#",
}


def agrees(dialect, schema, test):
    try:
        return DIALECTS[dialect](schema).is_valid(test["data"]) == test["valid"]
    except Exception:  # not a schema for this reader: no judge, no case
        return False


def main():
    root = pathlib.Path(sys.argv[1])
    # What we do not enforce, and valid texts that we never write.
    notes = json.loads((pathlib.Path(__file__).parent / "suite_notes.json").read_text())
    cases = []
    for dialect, names in FILES.items():
        for name in names:
            for group in json.loads((root / "tests" / dialect / f"{name}.json").read_text()):
                schema = group["schema"]
                text = json.dumps(schema)
                if isinstance(schema, dict):
                    schema.pop("$schema", None)
                    text = json.dumps(schema)
                if "json-schema.org" in text or "$dynamicRef" in text or "$vocabulary" in text:
                    continue
                if dialect in OLD and isinstance(schema, dict):
                    schema = {"$schema": OLD[dialect], **schema}
                case = {"name": f"{dialect}/{name}: {group['description']}", "schema": schema, "valid": [],
                        "invalid": []}
                for test in group["tests"]:
                    if agrees(dialect, schema, test):
                        case["valid" if test["valid"] else "invalid"].append(
                            json.dumps(test["data"], ensure_ascii=False))
                if case["valid"] or case["invalid"]:
                    cases.append({**case, **notes.get(case["name"], {})})
    print("[\n" + ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases) + "\n]")


main()
