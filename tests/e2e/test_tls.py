"""The server over TLS, beside clients that know nothing of it: curl, Python's ssl, the OpenAI client."""
import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import time
import urllib.parse
import urllib.request

import openai
import pytest

from conftest import PROGRAM, Server

CHAT = {"model": "pocket", "messages": [{"role": "user", "content": "What is 17 + 25?"}], "temperature": 0}


def openssl(*args):
    subprocess.run(["openssl", *args], check=True, capture_output=True)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """An authority, a server's and a client's certificate of it."""
    folder = tmp_path_factory.mktemp("tls")
    new = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    ca, ca_key = folder / "ca.pem", folder / "ca.key"
    openssl(*new, "-x509", "-subj", "/CN=Test authority", "-keyout", ca_key, "-out", ca, "-days", "2")
    for name, subject in (("server", "/CN=127.0.0.1"), ("client", "/CN=someone")):
        (folder / "ext").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        openssl(*new, "-subj", subject, "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.csr")
        openssl("x509", "-req", "-in", folder / f"{name}.csr", "-CA", ca, "-CAkey", ca_key, "-CAcreateserial", "-days", "2",
                "-extfile", folder / "ext", "-out", folder / f"{name}.pem")
    return folder


@pytest.fixture(scope="module")
def tls(files):
    running = Server("--ssl-certfile", str(files / "server.pem"), "--ssl-keyfile", str(files / "server.key"))
    yield running
    assert running.stop() == 0


def context(files):
    return ssl.create_default_context(cafile=str(files / "ca.pem"))


def port_of(server):
    return urllib.parse.urlsplit(server.url).port


def chunks_of(client):
    return [(chunk.choices[0].delta.to_dict(), chunk.choices[0].finish_reason)
            for chunk in client.chat.completions.create(**CHAT, stream=True) if chunk.choices]


def test_the_openai_client_sees_what_it_sees_without_tls(tls, server, files):
    assert tls.url.startswith("https://")
    with tls.client(http_client=openai.DefaultHttpxClient(verify=context(files))) as client:
        streamed = chunks_of(client)
        whole = client.chat.completions.create(**CHAT).choices[0].message.content
    plain = chunks_of(server.client())
    assert len(streamed) > 3 and streamed == plain
    assert whole == "".join(delta.get("content") or "" for delta, _ in plain) and "42" in whole
    with tls.client(max_retries=0) as stranger, pytest.raises(openai.APIConnectionError):
        stranger.models.list()


def test_curl(tls, files):
    def curl(*args):
        return subprocess.run(["curl", "-sS", "--max-time", "20", *args], capture_output=True, text=True)
    ca = ["--cacert", str(files / "ca.pem")]
    found = curl(*ca, tls.url + "/v1/models", "-w", " %{http_code} %{http_version} %{ssl_verify_result}")
    assert found.returncode == 0 and found.stdout.endswith(" 200 1.1 0") and '"pocket"' in found.stdout
    assert f"https://127.0.0.1:{port_of(tls)}" in curl(*ca, tls.url + "/docs").stdout
    assert curl(tls.url + "/health").returncode == 60  # not trusted
    plain = curl(tls.url.replace("https", "http") + "/health", "-w", " %{http_code}")
    assert plain.stdout.endswith(" 400") and "this port speaks TLS" in plain.stdout
    assert curl(*ca, "--tls-max", "1.1", tls.url + "/health").returncode == 35
    big = files / "big.json"  # 3 MiB, which are answered
    big.write_text(json.dumps({"prompt": "a b c d " * (3 << 17), "add_special_tokens": False}))
    counted = json.loads(curl(*ca, tls.url + "/tokenize", "-H", "content-type: application/json", "-d", f"@{big}").stdout)
    assert counted["count"] > 1 << 20


def test_versions_and_protocols(tls, files):
    def reached(change):
        client = context(files)
        change(client)
        with socket.create_connection(("127.0.0.1", port_of(tls)), 10) as plain:
            with client.wrap_socket(plain, server_hostname="localhost") as secure:
                secure.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                answer = b""
                while more := secure.recv(4096):  # raises where the end is not told
                    answer += more
                assert answer.startswith(b"HTTP/1.1 200 ")
                return secure.version(), secure.selected_alpn_protocol()
    assert reached(lambda client: client.set_alpn_protocols(["h2", "http/1.1"])) == ("TLSv1.3", "http/1.1")
    assert reached(lambda client: setattr(client, "maximum_version", ssl.TLSVersion.TLSv1_2)) == ("TLSv1.2", None)
    with pytest.raises(ssl.SSLError, match="no application protocol"):
        reached(lambda client: client.set_alpn_protocols(["h2"]))


def test_connections_that_fail_leave_the_others_alone(tls, files):
    kept = http.client.HTTPSConnection("127.0.0.1", port_of(tls), context=context(files), timeout=20)
    def healthy():
        kept.request("GET", "/health")
        answer = kept.getresponse()
        return answer.status == 200 and answer.read() == b""
    assert healthy()
    for first in (b"", b"\x16\x03\x01\x02\x00\x01", b"\x00" * 5000, b"GET / HTTP/1.1\r\n", b"\x16\x03\x01" * 3000):
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", port_of(tls)), 10) as cut:
                cut.sendall(first)
    assert healthy()


def test_own_clients(tls, files):
    asked = subprocess.run([PROGRAM, "chat", "--url", tls.url, "What is 17 + 25?"], capture_output=True, text=True,
                           timeout=60, env={**os.environ, "SSL_CERT_FILE": str(files / "ca.pem")})
    assert asked.returncode == 0 and "42" in asked.stdout, asked
    stranger = subprocess.run([PROGRAM, "chat", "--url", tls.url, "Hi"], capture_output=True, text=True, timeout=60)
    assert stranger.returncode == 1 and "certificate verify failed" in stranger.stderr and "SSL_CERT_FILE" in stranger.stderr


def test_bench_serve(tls, files, tmp_path):
    def bench(*flags, **env):
        return subprocess.run([PROGRAM, "bench", "serve", "--base-url", tls.url, "--num-prompts", "12", "--max-concurrency", "4",
                               "--random-input-len", "600", "--random-output-len", "12", "--save-result", "--save-detailed", "--result-dir",
                               str(tmp_path), "--result-filename", "out.json", *flags], capture_output=True, text=True, timeout=120,
                              env={**os.environ, **env})
    for run in (bench(SSL_CERT_FILE=str(files / "ca.pem")), bench("--insecure")):
        assert run.returncode == 0, run.stderr
        result = json.loads((tmp_path / "out.json").read_text())
        assert result["completed"] == 12 and result["total_output_tokens"] == 12 * 12
        for latency, ttft, itls in zip(result["latencies"], result["ttfts"], result["itls"], strict=True):
            assert 0 < ttft <= latency and abs(latency - ttft - sum(itls)) < 1e-6
    stranger = bench()
    assert stranger.returncode == 1 and "certificate verify failed" in stranger.stderr, stranger


def test_clients_that_must_show_a_certificate(files):
    own = ["--ssl-certfile", str(files / "server.pem"), "--ssl-keyfile", str(files / "server.key")]
    server = Server(*own, "--ssl-ca-certs", str(files / "ca.pem"), "--ssl-cert-reqs", "2")
    try:
        with pytest.raises((ssl.SSLError, OSError)):
            urllib.request.urlopen(server.url + "/health", context=context(files), timeout=20)
        known = context(files)
        known.load_cert_chain(files / "client.pem", files / "client.key")
        assert urllib.request.urlopen(server.url + "/health", context=known, timeout=20).status == 200
        assert server.says("peer did not return a certificate")
    finally:
        server.stop()


def test_files_that_change_are_read_again(files, tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    shutil.copy(files / "server.pem", cert)
    shutil.copy(files / "server.key", key)
    server = Server("--ssl-certfile", str(cert), "--ssl-keyfile", str(key), "--enable-ssl-refresh")

    def connect():
        plain = socket.create_connection(("127.0.0.1", port_of(server)), 10)
        return context(files).wrap_socket(plain, server_hostname="127.0.0.1")

    def said(what):
        end = time.monotonic() + 10
        while what not in server.text():
            assert time.monotonic() < end, server.text()
            time.sleep(0.05)

    def answers(connection):
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return connection.recv(4096).startswith(b"HTTP/1.1 200 ")

    def name_of(connection):
        return dict(part[0] for part in connection.getpeercert()["subject"])["commonName"]

    try:
        kept = connect()
        assert name_of(kept) == "127.0.0.1" and answers(kept)
        shutil.copy(files / "client.pem", cert)  # its key is another: the pair is broken
        said("the former ones stay in use: --ssl-keyfile")
        with connect() as still:
            assert name_of(still) == "127.0.0.1" and answers(still)
        new = tmp_path / "new"
        shutil.copy(files / "client.key", new)
        os.rename(new, key)
        said("new connections use what is in")
        with connect() as changed:
            assert name_of(changed) == "someone" and answers(changed)
        assert answers(kept)
        kept.close()
    finally:
        assert server.stop() == 0


def test_what_cannot_be_started_says_why(files):
    def refused(*flags):
        run = subprocess.run([PROGRAM, "serve", "--port", "0", *flags], capture_output=True, text=True, timeout=60)
        assert run.returncode != 0
        return run.stderr
    cert, key = str(files / "server.pem"), str(files / "server.key")
    assert f"--ssl-keyfile {key}.no: No such file" in refused("--ssl-certfile", cert, "--ssl-keyfile", key + ".no")
    other = str(files / "client.key")
    assert f"--ssl-keyfile {other}: the key is not that of the certificate in --ssl-certfile {cert}" in refused(
        "--ssl-certfile", cert, "--ssl-keyfile", other)
    locked = str(files / "locked.key")
    openssl("pkey", "-in", key, "-aes128", "-passout", "pass:secret", "-out", locked)
    assert f"--ssl-keyfile {locked}: the key has a password" in refused("--ssl-certfile", cert, "--ssl-keyfile", locked)
    assert "--ssl-keyfile needs --ssl-certfile" in refused("--ssl-keyfile", key)
    assert "--ssl-cert-reqs 2 needs --ssl-ca-certs" in refused("--ssl-certfile", cert, "--ssl-keyfile", key, "--ssl-cert-reqs", "2")
