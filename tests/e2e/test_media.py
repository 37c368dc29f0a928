"""Pictures that a request only names, on the web and in a folder: what is fetched, what never is, and what a decoder's death costs."""
import base64
import concurrent.futures
import http.server
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import threading
import time

import anthropic
import openai
import pytest

from conftest import Server
from test_pictures import BLUE, RED, TEXT, ask, model, part, png, said  # noqa: F401

MIB = 1 << 20
SERVE = ["--load-format", "dummy", "--device", "cpu", "--served-model-name", "sees"]


class Web:
    """A host of pictures, with some that answer badly; counts what came and what it sent."""

    def __init__(self, host="127.0.0.1"):
        self.paths, self.sent, self.extra = [], 0, {}
        web = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):
                web.paths.append(self.path)
                try:
                    web.answer(self, self.path.split("?")[0].split("#")[0])
                except OSError:
                    pass

        class Listener(http.server.ThreadingHTTPServer):
            daemon_threads = True
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        self.listener = Listener((host, 0), Handler)
        self.port = self.listener.server_address[1]
        threading.Thread(target=self.listener.serve_forever, daemon=True).start()

    def url(self, path):
        return f"http://127.0.0.1:{self.port}{path}"

    def answer(self, to, path):
        bodies = {"/red.png": RED, "/blue.png": BLUE, "/padded.png": RED + b"\0" * 10 * MIB, "/text": b"<html>", **self.extra}
        if path in bodies:
            to.send_response(200)
            to.send_header("Content-Length", str(len(bodies[path])))
            to.end_headers()
            for at in range(0, len(bodies[path]), 65536):
                to.wfile.write(bodies[path][at:at + 65536])
                self.sent += 65536
        elif path.startswith("/to/"):
            to.send_response(302)
            to.send_header("Location", path[4:].replace("PORT", str(self.port)))
            to.end_headers()
        elif path == "/slow.png":
            to.send_response(200)
            to.send_header("Content-Length", "1000000")
            to.end_headers()
            while True:
                to.wfile.write(b"x")
                time.sleep(0.1)
        elif path == "/endless.png":
            to.send_response(200)
            to.end_headers()
            while True:
                to.wfile.write(b"\0" * 65536)
                self.sent += 65536
        else:
            to.send_error(404)


@pytest.fixture(scope="module")
def web():
    return Web()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """root/ is served, and lies beside a secret."""
    home = tmp_path_factory.mktemp("media")
    (home / "root/sub").mkdir(parents=True)
    (home / "root/red.png").write_bytes(RED)
    (home / "root/sub/a b.png").write_bytes(BLUE)
    (home / "secret.png").write_bytes(RED)
    return home


@pytest.fixture(scope="module")
def server(model, web, folder):  # noqa: F811
    """With everything open that an operator can open, for one host."""
    running = Server(model, *SERVE, "--allowed-media-domains", "127.0.0.1", "--allowed-local-media-path", str(folder / "root"),
                     env={"VLLM_MEDIA_EGRESS_BLOCK_PRIVATE": "0", "VLLM_IMAGE_FETCH_TIMEOUT": "2", "A_SECRET": "xyzzy-of-the-operator"})
    yield running
    assert running.stop() == 0


def named(url):
    return {"type": "image_url", "image_url": {"url": url}}


def why_not(server, *urls, at=0):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(server, *[named(url) for url in urls], TEXT)
    error = refused.value.body
    assert error["param"] == f"messages[0].content[{at}].image_url"
    assert not re.search(r"0x[0-9a-f]{4}|curl|errno|/proc|/tmp|127\.|169\.254", error["message"]), error
    return error["message"]


def resident(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text()).group(1)) << 10


def decoders(server):
    """The processes that decode the server's pictures."""
    found = []
    for children in pathlib.Path(f"/proc/{server.process.pid}/task").glob("*/children"):
        for pid in map(int, children.read_text().split()):
            if pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().endswith(b"\0pictures\0"):
                found.append(pid)
    return found


def test_a_named_picture_is_the_same_as_a_given_one(server, web):
    given, fetched = ask(server, part(RED), TEXT), ask(server, named(web.url("/red.png")), TEXT)
    assert said(fetched) == said(given) and fetched.usage.prompt_tokens == given.usage.prompt_tokens
    assert said(ask(server, named(web.url("/to/red.png").replace("/to/", "/to//")), TEXT)) == said(given)  # a redirect to /red.png


def test_the_clients_examples_with_urls(server, web):
    tokens = ask(server, part(RED), TEXT).usage.prompt_tokens
    response = server.client().responses.create(model="sees", max_output_tokens=5, input=[{"role": "user", "content": [
        {"type": "input_text", "text": "what's in this image?"}, {"type": "input_image", "image_url": web.url("/red.png")}]}])
    assert response.usage.input_tokens > 50
    chat = server.client().chat.completions.create(model="sees", max_tokens=5, messages=[{"role": "user", "content": [
        {"type": "text", "text": "What's in this image?"}, {"type": "image_url", "image_url": {"url": web.url("/blue.png"), "detail": "high"}}]}])
    assert chat.usage.prompt_tokens > 50
    message = anthropic.Anthropic(base_url=server.url, api_key="none").messages.create(model="sees", max_tokens=5, messages=[
        {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": web.url("/red.png")}}, TEXT]}])
    assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) == tokens


def test_what_the_host_does_wrong_is_the_clients_error(server, web):
    assert "answers 404" in why_not(server, web.url("/none"))
    assert "picture" in why_not(server, web.url("/text"))
    assert "in time" in why_not(server, web.url("/slow.png"))
    assert "not take the connection" in why_not(server, "http://127.0.0.1:1/")
    assert "none of those" in why_not(server, web.url("/red.png"), f"http://localhost:{web.port}/red.png", at=1)


def test_redirects_lead_nowhere_else(server, web):
    sink, six = Web("127.0.0.2"), Web("::1")
    for target in (f"http://127.0.0.2:{sink.port}/", f"http://localhost:{six.port}/", f"http://[::1]:{six.port}/",
                   f"http://[::ffff:127.0.0.2]:{sink.port}/", f"http://2130706434:{sink.port}/", f"http://127.2:{sink.port}/",
                   f"http://127.0.0.1@127.0.0.2:{sink.port}/", "http://169.254.169.254/latest/meta-data/", "file:///etc/passwd",
                   f"ftp://127.0.0.2:{sink.port}/", f"/to/http://127.0.0.2:{sink.port}/", "/to//to//to//to/red.png",
                   "gopher://127.0.0.1/x"):
        assert why_not(server, web.url("/to/" + target))
    assert sink.paths == six.paths == []


def test_too_much_is_not_taken_and_text_is_served_meanwhile(server, web):
    ask(server, part(RED), TEXT)
    before, web.sent = resident(server.process.pid), 0
    most = [before]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        endless = pool.submit(why_not, server, web.url("/endless.png"))
        slow = [pool.submit(why_not, server, web.url("/slow.png")) for _ in range(8)]
        while not all(each.done() for each in (endless, *slow)):
            start = time.monotonic()
            assert ask(server, TEXT).usage.completion_tokens == 5
            assert time.monotonic() - start < 5
            most.append(resident(server.process.pid))
        assert f"more than {32 * MIB} bytes" in endless.result()
        assert all("in time" in each.result() for each in slow)
    assert web.sent <= 64 * MIB  # of an endless answer: the bound, and what sockets hold on both sides
    assert max(most) - before <= 2 * 32 * MIB + 16 * MIB


def test_the_pictures_of_a_request_are_bounded_together(server, web):
    web.sent = 0
    assert "more than" in why_not(server, *[web.url(f"/padded.png?{i}") for i in range(20)], at=6)
    assert web.sent <= 64 * MIB + 16 * MIB


def test_a_slow_request_has_an_end(server, web):
    """Redirects that each take a while, and pictures one after the other, count together."""
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for each in [pool.submit(why_not, server, web.url("/slow.png")) for _ in range(4)]:
            each.result()
    assert time.monotonic() - start < 20


def test_files_of_the_folder_are_read(server, folder):
    given = said(ask(server, part(BLUE), TEXT))
    assert said(ask(server, named(f"file://{folder}/root/sub/a%20b.png"), TEXT)) == given
    (folder / "root/link.png").symlink_to("sub/a b.png")
    assert said(ask(server, named(f"file://{folder}/root/link.png"), TEXT)) == given


def test_nothing_outside_of_the_folder_is_read(server, folder):
    root = folder / "root"
    (root / "out.png").symlink_to(folder / "secret.png")
    (root / "up.png").symlink_to("../secret.png")
    (root / "above").symlink_to("..")
    (root / "process").symlink_to("/proc/self")
    os.mkfifo(root / "fifo.png")
    with open(root / "huge.png", "wb") as huge:
        huge.truncate(1 << 40)
    before = resident(server.process.pid)
    for rest in ("out.png", "up.png", "above/secret.png", "process/environ", "fifo.png", "huge.png", "sub", ".", "..", "../secret.png",
                 "%2e%2e/secret.png", "sub/%2E%2E/%2e%2e/secret.png", "..%2fsecret.png", "%252e%252e/secret.png", "sub/../../secret.png",
                 "red.png%00.txt", "red.png/", "none.png", "red.png?x", "red.png#x", "./red.png", "/red.png", "sub//a b.png", "~", "a" * 5000):
        why = why_not(server, f"file://{root}/{rest}")
        assert str(folder) not in why and "secret" not in why
    for url in ("file:///etc/passwd", f"file://{folder}/secret.png", f"file://localhost{folder}/secret.png", f"file://host{root}/red.png",
                f"file://{root}", f"file://{root}rooted/x", "file:///dev/zero", "file:///proc/self/environ", "file:red.png", "file://",
                "file:////etc/passwd", f"file://{root}\\..\\..\\secret.png", f"file:///..{root}/red.png"):
        assert why_not(server, url)
    assert resident(server.process.pid) - before < 16 * MIB
    assert said(ask(server, named(f"file://{root}/red.png"), TEXT)) == said(ask(server, part(RED), TEXT))


def test_a_decoder_has_no_rights_and_no_secrets(server):
    ask(server, part(RED), TEXT)
    pid = decoders(server)[0]
    assert b"xyzzy" not in pathlib.Path(f"/proc/{pid}/environ").read_bytes()
    assert sorted(os.listdir(f"/proc/{pid}/fd")) == ["3", "4"]
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    assert re.search(r"NoNewPrivs:\s+1", status) and re.search(r"Seccomp:\s+2", status)


def test_a_decoder_that_dies_costs_its_picture_alone(server):
    new = (png(56, 28, (10 * shade, 0, 0)) for shade in range(20))  # what has been decoded is not decoded again
    ask(server, part(next(new)), TEXT)
    for _ in range(3):
        for pid in decoders(server):
            os.kill(pid, signal.SIGSTOP)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            url = "data:image/png;base64," + base64.b64encode(next(new)).decode()
            hit = pool.submit(why_not, server, url)
            time.sleep(0.3)
            assert ask(server, TEXT).usage.completion_tokens == 5  # others do not wait
            assert not hit.done()
            for pid in decoders(server):
                os.kill(pid, signal.SIGKILL)
            assert "broke the process that decodes pictures" in hit.result()
        assert ask(server, part(next(new)), TEXT).usage.completion_tokens == 5
    assert server.says("The process that decodes pictures ended during a picture: signal 9")


def test_a_private_address_is_never_reached_by_default(model):  # noqa: F811
    """However its URL is spelled, and although the operator has named the host."""
    sink, six = Web(), Web("::1")
    hosts = ["*", "localhost", "127.0.0.1", "::1", "0.0.0.0", "127.0.0.2", "ip6-localhost", socket.gethostname(), "::ffff:127.0.0.1"]
    running = Server(model, *SERVE, "--allowed-media-domains", *hosts)
    try:
        four = ["localhost", "LOCALHOST", "localhost.", "127.0.0.1", "127.0.0.2", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.1",
                "0177.0.0.1", "017700000001", "127.0.0.1.", "0.0.0.0", "0", "%31%32%37.0.0.1", "127%2e0.0.1", "[::ffff:127.0.0.1]",
                "[::ffff:7f00:1]", "[::7f00:1]", "[64:ff9b::7f00:1]", "[64:ff9b::127.0.0.1]", "[2002:7f00:1::]", "[0:0:0:0:0:ffff:7f00:0001]",
                "[::]", "loc%61lhost", "\u24db\u24de\u24d2alhost", "\uff11\uff12\uff17.0.0.1", "127。0。0。1", "user@127.0.0.1", "a:b@127.0.0.1",
                "1.1.1.1@127.0.0.1", "127.0.0.1\\@1.1.1.1", "1.1.1.1\\@127.0.0.1", "127.0.0.1\t", " 127.0.0.1", "127.0.0.1%00", socket.gethostname()]
        urls = [f"{scheme}://{host}:{sink.port}{path}" for host in four for scheme in ("http", "HTTP", "https") for path in ("/", "/a?b#c")]
        urls += [f"http://{host}:{six.port}/" for host in ("[::1]", "[0:0:0:0:0:0:0:1]", "[::1%25lo]", "[::1%lo]", "ip6-localhost", "localhost")]
        urls += [f"http://{host}/" for host in ("169.254.169.254", "[fd00:ec2::254]", "10.0.0.1", "100.64.0.1", "192.168.0.1", "[fd00::8]",
                                                "172.16.0.1", "100.100.100.200", "224.0.0.1", "255.255.255.255", "[fe80::1]", "[ff02::1]")]
        assert len(urls) > 200
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert all(pool.map(lambda url: why_not(running, url), urls))
        assert sink.paths == six.paths == []
        assert ask(running, part(RED), TEXT).usage.completion_tokens == 5
    finally:
        assert running.stop() == 0


def test_redirects_can_be_forbidden_and_readers_of_text_have_no_decoder(model, web):  # noqa: F811
    running = Server(model, *SERVE, "--allowed-media-domains", "127.0.0.1",
                     env={"VLLM_MEDIA_EGRESS_BLOCK_PRIVATE": "0", "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0"})
    try:
        assert "not followed" in why_not(running, web.url("/to//red.png"))
        assert ask(running, named(web.url("/red.png")), TEXT).usage.completion_tokens == 5
        assert len(decoders(running)) == 1
    finally:
        assert running.stop() == 0
    for flags in (["--language-model-only"], ["--limit-mm-per-prompt", '{"image": 0, "video": 0}']):
        running = Server(model, *SERVE, *flags, "--allowed-local-media-path", "/")
        try:
            assert why_not(running, "file:///etc/passwd")
            assert ask(running, TEXT).usage.completion_tokens == 5
            assert decoders(running) == []
        finally:
            assert running.stop() == 0


def test_a_model_of_text_alone_is_not_stopped(model, folder, tmp_path):  # noqa: F811
    shutil.copytree(model, tmp_path / "text")
    config = json.loads((tmp_path / "text/config.json").read_text())
    del config["vision_config"]
    (tmp_path / "text/config.json").write_text(json.dumps(config))
    running = Server(str(tmp_path / "text"), *SERVE, "--allowed-local-media-path", str(folder), "--allowed-media-domains", "*")
    try:
        assert ask(running, TEXT).usage.completion_tokens == 5
        assert decoders(running) == []
    finally:
        assert running.stop() == 0


def test_what_is_no_folder_stops_the_start(model, folder):  # noqa: F811
    for path in (folder / "none", folder / "secret.png"):
        running = Server(model, *SERVE, "--allowed-local-media-path", str(path), wait=False)
        assert running.process.wait(60) != 0
        assert running.says(f"--allowed-local-media-path {path}: ")
    running = Server(model, *SERVE, "--allowed-media-domains", "https://a.example/", wait=False)
    assert running.process.wait(60) != 0
    assert running.says("expected the whole name of a host")
