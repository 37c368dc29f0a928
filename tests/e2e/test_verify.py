"""`baltoro verify`: a server against itself, against one with other weights, and against one that does everything wrong."""
import contextlib
import http.server
import json
import os
import re
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request

from conftest import PROGRAM, ROOT, Server

TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
SLOW_S = 8  # a limit that a busy machine keeps too
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {
    "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}}}


# Without those that name certificates, which a machine may have set.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("CURL_CA_BUNDLE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")}


def verify(*flags, code, env=None):
    done = subprocess.run([PROGRAM, "verify", *flags], capture_output=True, text=True, timeout=300,
                          env={**ENVIRONMENT, **(env or {})})
    assert done.returncode == code, done.stdout + done.stderr
    return done


class StandIn(http.server.BaseHTTPRequestHandler):
    """Hands everything on to a real server, and spoils the answer to a prompt as the word in its `user` field says."""
    protocol_version = "HTTP/1.1"
    real = ""  # its URL
    bare = False  # a vendor's API: no /tokenize, no log-probabilities, no tokens, no completions
    key = ""

    def log_message(self, *_):
        pass

    def send(self, status, body, kind="application/json"):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(BrokenPipeError):  # who asked has waited long enough
            self.wfile.write(body)

    def refuse(self, status, message):
        self.send(status, json.dumps({"error": {"message": message}}).encode())

    def hand_on(self, body=None):
        request = urllib.request.Request(self.real + self.path, body, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def do_GET(self):
        if self.key and self.headers.get("authorization") != f"Bearer {self.key}":
            return self.refuse(401, "no such key")
        self.send(*self.hand_on())

    def do_POST(self):
        text = self.rfile.read(int(self.headers["content-length"]))
        body = json.loads(text)
        fault = str(body.get("user", "")) or "tokens" * ("/tokenize" in self.path and "spoil the tokens" in str(body))
        if self.bare:
            if self.path != "/v1/chat/completions":
                return self.refuse(404, "no such route")
            if "logprobs" in body:
                return self.refuse(400, "logprobs are not offered")
            body.pop("return_token_ids", None)
            text = json.dumps(body).encode()
        if fault == "500":
            return self.refuse(500, "the model is gone")
        if fault == "drop":
            self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{\"choi")
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        if fault == "slow" and not body.get("stream"):
            time.sleep(SLOW_S + 2)
        status, answer = self.hand_on(text)
        if self.path == "/v1/chat/completions" and body.get("stream"):
            return self.send(status, self.spoil_stream(fault, answer), "text/event-stream")
        self.send(status, json.dumps(self.spoil(fault, json.loads(answer))).encode())

    def spoil_stream(self, fault, answer):
        if fault == "cut-stream":
            return answer[:answer.rindex(b"finish_reason\":\"") - 200].rpartition(b"\n\n")[0] + b"\n\n"
        if fault == "arguments":
            return answer.replace(b'\\"city\\"', b'\\"city')
        return answer

    def spoil(self, fault, answer):
        if "tokens" in answer and fault == "tokens":
            answer["tokens"].append(7)
        if "choices" not in answer or "message" not in answer["choices"][0]:
            return answer
        choice = answer["choices"][0]
        message = choice["message"]
        if self.bare:
            for key in ("logprobs", "token_ids"):
                choice.pop(key, None)
        if fault == "tokens":
            answer["prompt_token_ids"] = answer["prompt_token_ids"][:-1] + [7]
        elif fault == "answer":
            first = choice["logprobs"]["content"][0]
            first["token"], choice["token_ids"][0] = "Zebra", 7
            message["content"] = "Zebra" + message["content"]
        elif fault == "arguments":
            message["tool_calls"][0]["function"]["arguments"] = '{"city": '
        elif fault == "name":
            message["tool_calls"][0]["function"]["name"] = "get_time"
        elif fault == "schema":
            message["content"] = '{"n": "four"}'
        elif fault == "no-thinking":
            message["reasoning"] = message["reasoning_content"] = None
        elif fault == "finish":
            choice["finish_reason"] = "content_filter"
        return answer


class Standing:
    def __init__(self, real, certificate=None, **settings):
        handler = type("Handler", (StandIn,), {"real": real, **settings})
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = f"http{'s' if certificate else ''}://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def prompts_file(folder, faults):
    """A prompt for each fault, asked for in the body's `user`."""
    path = folder / "prompts.jsonl"
    with path.open("w") as file:
        for fault in faults:
            body = {"messages": [{"role": "user", "content": "What is 12 + 30?"}], "max_tokens": 80, "user": fault,
                    "chat_template_kwargs": {"thinking": fault == "no-thinking"}}
            if fault in ("arguments", "name"):
                body.update(messages=[{"role": "user", "content": "What is the weather in Oslo?"}], tools=[TOOL], tool_choice="required")
            if fault == "schema":
                body["response_format"] = SCHEMA
            if fault == "tokens":
                body["messages"][0]["content"] += " spoil the tokens"
            file.write(json.dumps({"custom_id": fault, "method": "POST", "url": "/v1/chat/completions", "body": body}) + "\n")
    return str(path)


def test_a_server_is_the_same_as_itself(server, tmp_path):
    # But for the long ones: the pocket model needs minutes for these on a processor.
    kinds = ["chat-*", "system-*", "turns-*", "content-*", "tool-*", "schema-*", "json-*", "unicode-*", "marks-*", "stop-*"]
    folder = tmp_path / "made" / "report"
    done = verify("--url", server.url, "--against", server.url + "/v1/", "--max-tokens", "48", "--concurrency", "8",
                  "--only", *kinds, "--report", str(folder), code=0)
    assert done.stdout.splitlines()[-1] == "verdict: same"
    report = json.loads((folder / "report.json").read_text())
    assert report["prompts"]["asked"] == report["prompts"]["equal"] == report["prompts"]["tokens_same"] >= 30
    for part in ("given_prompts", "given_answers", "own_answers"):
        assert report[part]["tokens"] > 100 and report[part]["largest"] < 0.01, report[part]
    assert not report["findings"] and not report["not_compared"] and not report["too_little"]
    assert report["ours"]["times"]["ttft_ms"]["median"] > 0 and report["theirs"]["times"]["tpot_ms"]["p99"] > 0
    assert "**verdict: same**" in (folder / "report.md").read_text()


def test_other_weights_are_found(server, tmp_path):
    made = tmp_path / "int4"
    subprocess.run([PROGRAM, "quantize", str(ROOT / "pocket/model"), str(made), "--format", "int4", "--parts", "attention,dense,shared,experts"],
                   check=True, stdout=subprocess.DEVNULL)
    prompts = tmp_path / "prompts.jsonl"
    # What the pocket model was not trained for: of what it knows it is as sure with 4 bits.
    asked = ["Count from 97 to 120.", "Sort these words: zebra, quill, apple, onyx, fig, mango", "What day is 17 March 2031?", "Is it warm?",
             "Which is larger, 9.11 or 9.9?", '{"a":', "Spell lighthouse backwards.", "Say in JSON whether 17 is prime.", "17, 34, 51,",
             "My number is 4417. What is it times three?", "Weather", "How many seconds are 3.7 hours?"]
    prompts.write_text("".join(json.dumps({"messages": [{"role": "user", "content": text}]}) + "\n" for text in asked))
    other = Server(str(made))
    try:
        done = subprocess.run([PROGRAM, "verify", "--url", other.url, "--against", server.url, "--max-tokens", "48", "--concurrency", "8",
                               "--prompts", str(prompts), "--json"], capture_output=True, text=True, timeout=300)
    finally:
        other.stop()
    report = json.loads(done.stdout)
    assert done.returncode == 1 and report["verdict"] == "differs", report["sentence"]
    assert report["given_prompts"]["mean"] > 0.1 and report["given_answers"]["mean"] > 0.01 and report["prompts"]["equal"] < report["prompts"]["asked"]
    assert report["prompts"]["tokens_same"] == report["prompts"]["asked"]  # the template is the same


def test_each_fault_is_found_and_named(server, tmp_path):
    faults = {"none": None,
              "500": ("no answer", r"theirs: 500: the model is gone"),
              "drop": ("no answer", r"theirs: .*bytes remaining"),
              "slow": ("no answer", rf"theirs: no whole answer in {SLOW_S} s"),
              "tokens": ("prompt tokens", r"differ from token \d+ on"),
              "answer": ("answer", r'ours ".*", theirs "Zebra"'),
              "arguments": ("tool call", r"theirs: the arguments of get_weather are no JSON"),
              "name": ("tool call", r'theirs: a call names "get_time", which is not declared'),
              "schema": ("structured output", r"theirs: the content is not valid against its schema"),
              "no-thinking": ("reading", r"thinking is on ours alone"),
              "finish": ("finish reason", r'"content_filter" on theirs'),
              "cut-stream": ("stream", r"theirs: the streamed answer failed: the stream ended without"),
              "last": None}
    with Standing(server.url) as bad:
        done = verify("--url", server.url, "--against", bad.url, "--prompts", prompts_file(tmp_path, faults), "--timeout", str(SLOW_S),
                      "--concurrency", "4", "--json", code=1)
    report = json.loads(done.stdout)
    found = {}
    for finding in report["findings"]:
        found.setdefault(finding["prompt"], []).append((finding["kind"], finding["said"]))
    for fault, expected in faults.items():
        if expected is None:
            assert fault not in found, found[fault]
        else:
            assert any(kind == expected[0] and re.search(expected[1], said) for kind, said in found[fault]), found[fault]
    kinds = [finding["kind"] for finding in report["findings"]]
    assert kinds[0] == "no answer" and report["sentence"].startswith("verdict: differs: no answer (")
    assert sorted(kind for kind, _ in found["arguments"]) == ["reading", "tool call"]  # not told again of the stream


def test_a_vendors_api_is_compared_as_far_as_it_goes(server, tmp_path):
    prompts = prompts_file(tmp_path, ["none"])
    with Standing(server.url, bare=True, key="k") as vendor:
        done = verify("--url", server.url, "--against", vendor.url, "--prompts", prompts, code=0, env={"BALTORO_AGAINST_API_KEY": "k"})
        refused = verify("--url", server.url, "--against", vendor.url, "--prompts", prompts, code=3)
    for part in ("not compared: log-probabilities of answers: theirs: 400: logprobs are not offered",
                 "not compared: the prompt's tokens but for their number of 1 prompt: theirs: /tokenize: 404: no such route",
                 "not compared: log-probabilities of a given text of 1 prompt: theirs: /v1/completions with echo: 404",
                 "verdict: same; too little was compared to be sure: 1 of 1 prompts"):
        assert part in done.stdout, done.stdout
    assert "--against-api-key" in refused.stderr and "no such key" in refused.stderr


def test_https(server, tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj",
                    "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
                   check=True, capture_output=True)
    prompts = prompts_file(tmp_path, ["none"])
    with Standing(server.url, certificate=(certificate, key)) as other:
        verify("--url", server.url, "--against", other.url, "--prompts", prompts, code=0, env={"SSL_CERT_FILE": str(certificate)})
        strange = verify("--url", server.url, "--against", other.url, "--prompts", prompts, code=3)
    assert "certificate" in strange.stderr


def test_servers_that_are_not_there_and_wrong_usage(server, tmp_path):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        gone = verify("--url", server.url, "--against", f"127.0.0.1:{closed.getsockname()[1]}", code=3)
    assert "--against (http://127.0.0.1:" in gone.stderr and "ouldn't connect" in gone.stderr
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"messages": [{"role": "user", "content": "a"}]}\n{"prompt": "a"}\n')
    wrong = verify("--url", server.url, "--against", server.url, "--prompts", str(broken), code=2)
    assert f'{broken}:2: the body needs "messages"' in wrong.stderr
    assert "--report" in verify("--against", server.url, "--report", str(broken), code=2).stderr
    assert "required: --against" in verify(code=2).stderr
