"""/openapi.json held against the server: it names every route and field that the server reads, and the server reads
every field that it names and keeps every limit."""
import json
import pathlib
import re
import urllib.error
import urllib.request

import pytest

from conftest import Server

SOURCES = pathlib.Path(__file__).resolve().parents[2] / "src/server"
MESSAGES = [{"role": "user", "content": "Hi"}]
BODIES = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_completion_tokens": 1},
    "/v1/completions": {"prompt": "Hi", "max_tokens": 1},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 1},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/tokenize": {"messages": MESSAGES},
    "/detokenize": {"tokens": [65]},
}
# What a field needs beside it before its own value is looked at.
COMPANIONS = {"stream_options": {"stream": True}, "top_logprobs": {"logprobs": True}}
NUMBERS = ("integer", "number")


@pytest.fixture(scope="module")
def document(server):
    with urllib.request.urlopen(server.url + "/openapi.json") as answer:
        return json.load(answer)


def post(server, path, body):
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def fields_of(document, schema):
    found = {}
    while "$ref" in schema:
        schema = document["components"][schema["$ref"].split("/")[2]][schema["$ref"].split("/")[3]]
    for part in schema.get("allOf", []):
        found.update(fields_of(document, part))
    found.update(schema.get("properties", {}))
    return found


def body_fields(document, path):
    body = document["paths"][path]["post"]["requestBody"]
    named = document["components"]["requestBodies"][body["$ref"].split("/")[-1]]
    return fields_of(document, named["content"]["application/json"]["schema"])


def all_names(value):
    """Every name of a property, and every word, anywhere in the document."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from all_names(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from all_names(inner)
    elif isinstance(value, str):
        yield from re.findall(r"[a-z_]+", value)


def wrong_values(schema):
    """Values that break a field's type or one of its limits."""
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if "const" in schema:
        return [not schema["const"]]
    if "enum" in schema:
        return ["nothing of this kind"]
    wrong = [5 if not set(kinds) & set(NUMBERS) else "x"]
    if "minimum" in schema:
        wrong.append(schema["minimum"] - 1)
    if "exclusiveMinimum" in schema:
        wrong.append(schema["exclusiveMinimum"])
    if "maximum" in schema:
        wrong.append(schema["maximum"] + 1)
    if "maxLength" in schema and schema["maxLength"] < 10**6:
        wrong.append("x" * (schema["maxLength"] + 1))
    if schema.get("minLength"):
        wrong.append("")
    if schema.get("minItems"):
        wrong.append([])
    if "maxItems" in schema and schema["maxItems"] < 10**5:
        item = schema.get("items", {}).get("type")
        one = 1 if item == "integer" else "x" if item == "string" else {}
        wrong.append([one] * (schema["maxItems"] + 1))
    if "maxProperties" in schema:
        wrong.append({str(i): 0 for i in range(schema["maxProperties"] + 1)})
    if isinstance(schema.get("items"), dict) and "maxLength" in schema["items"]:
        wrong += [["x" * (schema["items"]["maxLength"] + 1)], [""]]
    return wrong


def good_values(schema):
    """Values on the edge of what is allowed."""
    values = [schema[edge] for edge in ("minimum", "maximum") if edge in schema]
    return values + (["x" * schema["maxLength"]] if schema.get("maxLength", 10**9) < 1000 else [])


def test_every_reference_leads_somewhere(document):
    for reference in re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(document)):
        place = document
        for step in reference.split("/"):
            place = place[step]
    assert document["openapi"].startswith("3.1") and "@" not in document["info"]["version"]


def test_the_routes_are_those_of_the_server(document):
    all_routes = Server("--enable-tokenizer-info-endpoint", "--load-format", "stand-in", "--profiler-config",
                        '{"profiler": "torch", "torch_profiler_dir": "/tmp/no-profile"}',
                        env={"VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_SERVER_DEV_MODE": "1"})
    all_routes.stop()
    served = {(path, method.lower()) for path, method in re.findall(r"Route: (\S+), Methods: (\S+)", all_routes.text())}
    described = {(path, method) for path, item in document["paths"].items() for method in item if method != "parameters"}
    assert served == described and len(served) >= 20


def test_every_field_that_the_server_reads_is_described(document):
    read = set()
    for source in [*SOURCES.glob("*.cc"), *SOURCES.glob("*.h")]:
        if not source.name.endswith("_test.cc"):
            text = source.read_text()
            read |= set(re.findall(r"\b(?:reader|inner|fields)\.(?:Find|Bool|Integer|Number|String|Strings|TokenIds)\(\s*\"(\w+)\"", text))
            read |= set(re.findall(r"k\w+Field = \"(\w+)\"", text))
            read |= set(re.findall(r"\bcopy\(\"(\w+)\"", text))
    extensions = re.search(r"kExtensions = \{([^}]+)\}", (SOURCES / "chat_body.cc").read_text()).group(1)
    read |= set(re.findall(r'"(\w+)"', extensions))
    assert len(read) > 80
    assert not read - set(all_names(document["components"]["schemas"]))


@pytest.mark.parametrize("path", BODIES)
def test_every_described_field_is_read_and_its_limits_are_kept(document, server, path):
    silent = []
    fields = body_fields(document, path)
    assert set(BODIES[path]) <= set(fields)
    for name, schema in fields.items():
        if schema.get("description", "").startswith("Ignored"):
            continue
        body = {**BODIES[path], **(COMPANIONS.get(name, {}) if set(COMPANIONS.get(name, {})) <= set(fields) else {})}
        if path == "/tokenize" and name in ("prompt", "return_token_strs"):
            body = {"prompt": "Hi"}
        if name == "max_tokens":
            body.pop("max_completion_tokens", None)
            body.update({"echo": True} if path == "/v1/completions" else {})
        for value in wrong_values(schema):
            status, answer = post(server, path, {**body, name: value})
            if status != 400 or name.split("_")[-1] not in answer:
                silent.append((name, str(value)[:60], status, answer[:120]))
        for value in good_values(schema):
            status, answer = post(server, path, {**body, name: value})
            if status == 400 and name != "n":  # n choices need a temperature
                silent.append((name, "should do: " + str(value)[:60], status, answer[:160]))
    assert not silent
