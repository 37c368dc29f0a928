"""Spans of requests at a collector: what arrives is read by OpenTelemetry's own protocol classes."""
import base64
import collections
import http.server
import json
import os
import signal
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from conftest import PROGRAM, Server

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
Arrived = collections.namedtuple("Arrived", "headers resource scope span")


def read_otlp(text):
    """OTLP/JSON writes ids in hexadecimal, where the mapping of protobuf writes bytes in base64."""
    message = json.loads(text)
    for resource in message["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for key in {"traceId", "spanId", "parentSpanId"} & span.keys():
                    span[key] = base64.b64encode(bytes.fromhex(span[key])).decode()
    return json_format.ParseDict(message, ExportTraceServiceRequest())


class Collector:
    """Keeps what it is sent. `behave` says what it answers: a status, or None for no answer at all."""

    def __init__(self, certificate=None):
        self.spans, self.posts, self.behave, self.answer = [], 0, lambda post: 200, {}
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.posts += 1
                status = collector.behave(collector.posts)
                if status is None:
                    collector.released.wait(30)
                    self.close_connection = True
                    return
                if status == 200 and self.path == "/v1/traces":
                    assert self.headers["content-type"] == "application/json"
                    for resource in read_otlp(body).resource_spans:
                        for scope in resource.scope_spans:
                            collector.spans += [Arrived(dict(self.headers), attributes(resource.resource), scope.scope, span)
                                                for span in scope.spans]
                answer = json.dumps(collector.answer).encode()
                self.send_response(status if self.path == "/v1/traces" else 404)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *args):
                pass

        self.released = threading.Event()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        if certificate:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = f"http{'s' if certificate else ''}://127.0.0.1:{self.server.server_port}/v1/traces"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def requests(self):
        return [arrived for arrived in list(self.spans) if arrived.span.name == "llm_request"]

    def wait_for(self, request_id, seconds=10):
        """The span of that request, and those of its parts by name."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for arrived in self.requests():
                if attributes(arrived.span)["gen_ai.request.id"].endswith(request_id):
                    parts = [each.span for each in list(self.spans) if each.span.parent_span_id == arrived.span.span_id]
                    return arrived, {part.name: part for part in parts}
            time.sleep(0.02)
        raise AssertionError(f"no span of {request_id}")

    def close(self):
        self.released.set()
        self.server.shutdown()
        self.server.server_close()


def attributes(message):
    def value(of):
        kind = of.WhichOneof("value")
        return [value(each) for each in of.array_value.values] if kind == "array_value" else getattr(of, kind)
    return {each.key: value(each.value) for each in message.attributes}


def ask(server, request_id, path="/v1/completions", headers=None, **fields):
    body = {"model": "pocket", "prompt": "Hello", "max_tokens": 8, "temperature": 0, **fields}
    if "chat" in path:
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(),
                                     {"content-type": "application/json", "x-request-id": request_id, **(headers or {})})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode()


def counts(server):
    lines = urllib.request.urlopen(server.url + "/metrics").read().decode().splitlines()
    return {line.rsplit(" ", 1)[0].split("{")[0].removeprefix("baltoro:trace_spans_") + (
        "/" + line.split('reason="')[1].split('"')[0] if "reason=" in line else ""): float(line.rsplit(" ", 1)[1])
        for line in lines if line.startswith("baltoro:trace_spans_")}


@pytest.fixture(scope="module")
def collector():
    made = Collector()
    yield made
    made.close()


@pytest.fixture(scope="module")
def traced(collector):
    running = Server("--otlp-traces-endpoint", collector.url, "--collect-detailed-traces", "all", "--enable-log-requests",
                     env={"OTEL_SERVICE_NAME": "k2-test", "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=e2e",
                          "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=mine"})
    yield running
    assert running.stop() == 0


def test_a_request_is_a_span_below_its_clients(traced, collector):
    before = time.time_ns()
    usage = json.loads(ask(traced, "whole", path="/v1/chat/completions", temperature=0.5, top_p=0.9,
                           headers={"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "rojo=1,congo=t61"}))["usage"]
    arrived, parts = collector.wait_for("whole")
    span, told = arrived.span, attributes(arrived.span)

    assert (span.trace_id.hex(), span.parent_span_id.hex(), span.trace_state) == (TRACE, PARENT, "rojo=1,congo=t61")
    assert span.kind == Span.SPAN_KIND_SERVER and span.status.code == Status.STATUS_CODE_UNSET
    assert len(span.span_id) == 8 and span.flags == 0x301
    assert before <= span.start_time_unix_nano < span.end_time_unix_nano <= time.time_ns()
    assert arrived.resource["service.name"] == "k2-test" and arrived.resource["deployment.environment"] == "e2e"
    assert arrived.scope.name == "baltoro" and arrived.headers["x-tenant"] == "mine"
    assert told["gen_ai.request.id"] == "chatcmpl-whole" and told["gen_ai.response.model"] == "pocket"
    assert (told["gen_ai.request.n"], told["gen_ai.request.max_tokens"]) == (1, 8)
    assert told["gen_ai.request.temperature"] == 0.5 and abs(told["gen_ai.request.top_p"] - 0.9) < 1e-6
    assert told["gen_ai.usage.prompt_tokens"] == usage["prompt_tokens"] > 0
    assert told["gen_ai.usage.completion_tokens"] == usage["completion_tokens"] > 0
    assert told["gen_ai.response.finish_reasons"] in (["stop"], ["length"])
    e2e = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
    assert abs(told["gen_ai.latency.e2e"] - e2e) < 1e-6
    assert 0 < told["gen_ai.latency.time_to_first_token"] <= e2e
    inference = told["gen_ai.latency.time_in_model_prefill"] + told["gen_ai.latency.time_in_model_decode"]
    assert abs(told["gen_ai.latency.time_in_model_inference"] - inference) < 1e-6

    assert list(parts) == ["prepare", "queue", "prefill", "decode"]
    ends = span.start_time_unix_nano
    for part in parts.values():  # one after the other, from the beginning on
        assert part.trace_id == span.trace_id and part.kind == Span.SPAN_KIND_INTERNAL
        assert part.start_time_unix_nano == ends <= part.end_time_unix_nano <= span.end_time_unix_nano
        ends = part.end_time_unix_nano
    queued = parts["queue"].end_time_unix_nano - parts["queue"].start_time_unix_nano
    assert abs(told["gen_ai.latency.time_in_queue"] - queued / 1e9) < 1e-6
    assert len({part.span_id for part in parts.values()} | {span.span_id}) == 5


def test_a_malformed_parent_is_none_and_its_state_is_left_out(traced, collector):
    ask(traced, "bad", headers={"traceparent": f"00-{TRACE.upper()}-{PARENT}-01", "tracestate": "rojo=1"})
    ask(traced, "none")
    ask(traced, "bad-state", headers={"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "no member"})
    spans = [collector.wait_for("cmpl-" + name)[0].span for name in ("bad", "none", "bad-state")]
    assert [span.parent_span_id.hex() for span in spans] == ["", "", PARENT]
    assert [span.trace_state for span in spans] == [""] * 3
    assert len(spans[0].trace_id) == 16 and spans[0].trace_id.hex() != TRACE and spans[0].trace_id != spans[1].trace_id
    assert spans[0].flags == 0x101


def test_what_the_client_does_not_record_is_not_recorded(traced, collector):
    ask(traced, "unsampled", headers={"traceparent": f"00-{TRACE}-{PARENT}-00"})
    ask(traced, "after")
    collector.wait_for("after")
    assert not any("unsampled" in attributes(arrived.span)["gen_ai.request.id"] for arrived in collector.requests())


def test_streams_choices_and_clients_that_go(traced, collector):
    assert "[DONE]" in ask(traced, "stream", stream=True)
    told = attributes(collector.wait_for("stream")[0].span)
    assert told["gen_ai.usage.completion_tokens"] == 8 and told["gen_ai.response.finish_reasons"] == ["length"]
    ask(traced, "several", n=3, temperature=1)
    told = attributes(collector.wait_for("several")[0].span)
    assert told["gen_ai.request.n"] == 3 and len(told["gen_ai.response.finish_reasons"]) == 3
    request = urllib.request.Request(
        traced.url + "/v1/completions",
        json.dumps({"model": "pocket", "prompt": "a", "max_tokens": 4000, "stream": True, "ignore_eos": True}).encode(),
        {"content-type": "application/json", "x-request-id": "gone"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.readline()
    arrived, _ = collector.wait_for("gone")
    assert attributes(arrived.span)["gen_ai.response.finish_reasons"] == ["abort"]
    assert arrived.span.status.code == Status.STATUS_CODE_UNSET


def test_an_engine_that_dies_is_an_error_of_the_span(collector):
    server = Server("--otlp-traces-endpoint", collector.url, "--load-format", "stand-in", "--stand-in-step-ms", "20")
    try:
        failed = {}

        def wait():
            try:
                ask(server, "lost", max_tokens=4000, ignore_eos=True)
            except urllib.error.HTTPError as error:
                failed["status"] = error.code
        asking = threading.Thread(target=wait)
        asking.start()
        time.sleep(0.3)
        os.kill(server.engine_pid(), signal.SIGKILL)
        asking.join(20)
        span = collector.wait_for("lost")[0].span
    finally:
        server.stop()
    told = attributes(span)
    assert failed["status"] == 503 == told["http.response.status_code"]
    assert span.status.code == Status.STATUS_CODE_ERROR and span.status.message
    assert told["error.type"] and told["gen_ai.response.finish_reasons"] == ["error"]


def test_a_collector_that_is_busy_gets_them_later(traced, collector):
    start, posts = counts(traced)["exported_total"], collector.posts
    collector.behave = lambda post: 503 if post <= posts + 1 else 200
    ask(traced, "again")
    collector.wait_for("again")
    assert collector.posts >= posts + 2
    time.sleep(0.1)
    assert counts(traced)["exported_total"] == start + 1


def test_what_a_collector_refuses_is_counted_and_told_once(traced, collector):
    before = counts(traced)
    collector.behave = lambda post: 400
    try:
        for i in range(3):
            ask(traced, f"refused-{i}")
            while counts(traced)["dropped_total/undelivered"] < before["dropped_total/undelivered"] + i + 1:
                time.sleep(0.02)
    finally:
        collector.behave = lambda post: 200
    assert counts(traced)["exported_total"] == before["exported_total"]
    assert traced.says(f"1 requests have no span at {collector.url}: the answer is 400")
    assert traced.text().count("requests have no span at") == 1  # a line a minute
    collector.answer = {"partialSuccess": {"rejectedSpans": "1", "errorMessage": "too old"}}
    ask(traced, "partly")
    while counts(traced)["dropped_total/undelivered"] < before["dropped_total/undelivered"] + 4:
        time.sleep(0.02)
    collector.answer = {}


def test_requests_do_not_wait_for_a_collector_and_neither_does_a_stop():
    slow = Collector()
    slow.behave = lambda post: None
    server = Server("--otlp-traces-endpoint", slow.url)
    try:
        start = time.monotonic()
        for i in range(5):
            ask(server, f"slow-{i}")
        assert time.monotonic() - start < 5 and slow.posts <= 1
        while slow.posts == 0:
            time.sleep(0.02)
        start = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - start < 5
        assert server.says("requests have no span at")
    finally:
        server.stop()
        slow.close()


def test_a_stop_sends_what_is_left(collector):
    server = Server("--otlp-traces-endpoint", collector.url)
    ask(server, "last")
    assert server.stop() == 0
    collector.wait_for("last", seconds=0.5)
    assert "have no span" not in server.text()


def test_a_collector_at_https(tmp_path):
    certificate = tmp_path / "collector.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=here",
                    "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", certificate, "-out", tmp_path / "cert"], check=True,
                   capture_output=True)
    certificate.write_text(certificate.read_text() + (tmp_path / "cert").read_text())
    secure = Collector(certificate)
    server = Server("--otlp-traces-endpoint", secure.url, env={"OTEL_EXPORTER_OTLP_CERTIFICATE": str(certificate)})
    try:
        ask(server, "secure")
        secure.wait_for("secure")
    finally:
        server.stop()
        secure.close()


def test_a_collector_that_is_not_there():
    server = Server(env={"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"})
    try:
        assert server.says("spans of requests go to http://127.0.0.1:9/v1/traces")
        ask(server, "lost")
        time.sleep(0.7)
        assert server.stop() == 0
        assert server.says("1 requests have no span at http://127.0.0.1:9/v1/traces: ")
    finally:
        server.stop()


@pytest.mark.parametrize("flags, env, says", [
    (["--otlp-traces-endpoint", "http://collector:4317"], {}, "gRPC is not spoken"),
    (["--otlp-traces-endpoint", "http://c:4318/v1/traces"], {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}, "http/json"),
    (["--otlp-traces-endpoint", "http://c:4318"], {}, "http://HOST:4318/v1/traces"),
    (["--collect-detailed-traces", "all"], {}, "needs --otlp-traces-endpoint"),
])
def test_what_cannot_be_done_says_what_to_give(flags, env, says):
    run = subprocess.run([PROGRAM, "serve", "--port", "0", *flags], capture_output=True, text=True, timeout=60,
                         env={**os.environ, **env})
    assert run.returncode == 2 and says in run.stderr
