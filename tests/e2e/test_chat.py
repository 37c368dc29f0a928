"""`baltoro chat` on a pseudo-terminal and in pipes, beside a server that says what a test needs, and beside the real one."""
import base64
import http.server
import json
import os
import pty
import re
import select
import signal
import stat
import subprocess
import threading
import time

import pytest

from conftest import PROGRAM, Server
from test_pictures import BLUE, RED, model as seeing_model  # noqa: F401, a fixture


class Script(http.server.BaseHTTPRequestHandler):
    """Answers by the newest question's words, and keeps the requests."""
    protocol_version = "HTTP/1.1"
    seen = []

    def log_message(self, *_):
        pass

    def whole(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def event(self, text):
        data = f"data: {text}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def do_GET(self):
        self.whole(200, {"data": [{"id": "scripted"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Script.seen.append(body)
        question = body["messages"][-1]["content"]
        if isinstance(question, list):
            question = question[-1]["text"]
        if question == "long error":
            return self.whole(400, {"error": {"message": "wrong: " + "x" * 2000 + " \x1b[31mthe end"}})
        if question.isdigit():
            return self.whole(int(question), {"error": {"message": f"this is {question}"}})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        deltas = [{"reasoning": "let me\n"}, {"reasoning": "think"}, {"content": "to:"}, {"content": question}]
        if question == "controls":
            deltas = [{"content": "a\x1b[31mb\x7f\x9b2Jc"}]
        if question.startswith("slow"):
            deltas = [{"content": f"part{i} "} for i in range(200)]
        try:
            for delta in deltas:
                self.event(json.dumps({"choices": [{"delta": delta, "finish_reason": None}]}))
                time.sleep(0.1 if question.startswith("slow") else 0.002)
            if question == "broken":
                self.event(json.dumps({"error": {"message": "the engine has died", "code": 500}}))
            else:
                finish = "length" if body.get("max_tokens") == 1 else "stop"
                self.event(json.dumps({"choices": [{"delta": {}, "finish_reason": finish}]}))
                self.event(json.dumps({"choices": [], "usage": {"completion_tokens": 4}}))
            self.event("[DONE]")
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True


@pytest.fixture(scope="module")
def url():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Script)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture
def home(tmp_path):
    return {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), "TERM": "xterm", "LC_ALL": "C", "NO_COLOR": ""}


class Person:
    """Somebody at a terminal, before whom the program runs."""

    def __init__(self, url, *flags, env):
        self.text = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                os.execve(PROGRAM, [PROGRAM, "chat", "--url", url, *flags], {**os.environ, **env})
            finally:
                os._exit(127)

    def sees(self, wanted, seconds=20):
        """What comes until `wanted` (a pattern) is there, without what came before."""
        end = time.monotonic() + seconds
        while not (found := re.search(wanted, self.text)):
            ready, _, _ = select.select([self.fd], [], [], max(0, end - time.monotonic()))
            assert ready, f"{wanted!r} did not come; what did: {self.text!r}"
            try:
                more = os.read(self.fd, 65536)
            except OSError:  # the program has closed its side
                more = b""
            assert more, f"the program ended before {wanted!r}: {self.text!r}"
            self.text += more.decode(errors="replace")
        text, self.text = self.text[:found.end()], self.text[found.end():]
        return text

    def types(self, text):
        os.write(self.fd, text.encode())

    def ends(self, seconds=20):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if select.select([self.fd], [], [], 0.02)[0]:
                try:
                    self.text += os.read(self.fd, 65536).decode(errors="replace")
                except OSError:
                    pass
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
        os.kill(self.pid, signal.SIGKILL)
        raise AssertionError(f"it did not end: {self.text!r}")


def piped(url, *words, input="", env=None, **options):
    return subprocess.run([PROGRAM, "chat", "--url", url, *words], input=input, capture_output=True, text=True, timeout=60,
                          env={**os.environ, **(env or {})}, **options)


# Pipes.

def test_a_piped_question_is_answered_once_and_the_answer_is_alone(url):
    done = piped(url, input="two\nlines\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "to:two\nlines\n", "")
    assert Script.seen[-1]["messages"] == [{"role": "user", "content": "two\nlines"}]


def test_words_and_flags_reach_the_server(url):
    done = piped(url, "--system", "Be brief.", "--temperature", "0.25", "--max-tokens", "1", "--no-thinking", "--model", "named", "hello", "there")
    assert (done.returncode, done.stdout) == (0, "to:hello there\n")
    assert "cut off" in done.stderr
    body = Script.seen[-1]
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello there"}]
    assert (body["temperature"], body["max_tokens"], body["model"]) == (0.25, 1, "named")
    assert body["chat_template_kwargs"] == {"thinking": False}


def test_a_pipe_without_a_question_says_so(url):
    done = piped(url, input=" \n")
    assert done.returncode == 1 and done.stdout == "" and "nothing is asked" in done.stderr


def test_a_file_gets_what_the_model_said(url):
    assert piped(url, "controls").stdout == "a\x1b[31mb\x7f\x9b2Jc\n"


def test_what_is_no_text_is_refused(url):
    done = subprocess.run([PROGRAM, "chat", "--url", url], input=b"\xff\xfe", capture_output=True, timeout=60)
    assert done.returncode == 1 and b"UTF-8" in done.stderr


def test_standard_output_that_takes_nothing_is_an_error(url):
    with open("/dev/full", "w") as full:
        done = subprocess.run([PROGRAM, "chat", "--url", url, "hello"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1 and "standard output: No space left" in done.stderr


@pytest.mark.parametrize("question, advice", [
    ("401", "--api-key"), ("404", "--model can be: scripted"), ("429", "in a moment"), ("503", "/health"), ("500", "log")])
def test_errors_say_what_to_do(url, question, advice):
    done = piped(url, question)
    assert done.returncode == 1 and done.stdout == ""
    assert f"{question}: this is {question}\n" in done.stderr and advice in done.stderr.split("\n", 1)[1]


def test_errors_are_whole(url):
    done = piped(url, "long error")
    assert done.returncode == 1 and "x" * 2000 + "  [31mthe end" in done.stderr


def test_an_error_inside_the_stream_is_told(url):
    done = piped(url, "broken")
    assert done.returncode == 1 and done.stdout == "to:broken\n" and "the engine has died" in done.stderr


def test_no_server(tmp_path):
    done = piped("http://127.0.0.1:1", "hello")
    assert done.returncode == 1 and "baltoro serve" in done.stderr


# A terminal.

def test_lines_are_edited_and_come_back_in_the_next_conversation(url, home, tmp_path):
    person = Person(url, env=home)
    person.sees("(?s)Talking to scripted.*> ")
    person.types("helo é\x1b[D\x1b[D\x1b[Dl\x05!\n")  # three to the left, an l, to the end
    person.sees("to:hello é!")
    person.sees(r"\(4 tokens, [\d.]+ tokens/s, first token after [\d.]+ s\)")
    person.sees("> ")
    person.types("\x04")
    assert person.ends() == 0

    file = tmp_path / "state/baltoro/chat_history"
    assert file.read_text() == "hello é!\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    person = Person(url, env=home)
    person.sees("> ")
    person.types("\x1b[A\n")
    person.sees("to:hello é!")
    person.types("/quit\n")
    assert person.ends() == 0


def test_the_history_can_be_switched_off(url, home, tmp_path):
    person = Person(url, "--no-history", env=home)
    person.sees("> ")
    person.types("secret\n")
    person.sees("to:secret")
    person.types("/quit\n")
    assert person.ends() == 0
    assert not (tmp_path / "state").exists()


def test_commands(url, home, tmp_path):
    person = Person(url, env=home)
    person.sees("> ")
    person.types("/help\n")
    assert "/thinking on|off" in person.sees("Ctrl-C ends an answer")
    person.types("/system Be brief.\n")
    person.sees("system prompt holds")
    person.types("/thinking off\n")
    person.sees("thinking is off")
    person.types("one\\\n")
    person.sees(r"\.\.\. ")
    person.types("two\n")
    person.sees("to:one\r\ntwo")
    assert Script.seen[-1]["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one\ntwo"}]
    assert Script.seen[-1]["chat_template_kwargs"] == {"thinking": False}
    person.types('"""\n/no command\n\nend\n"""\n')
    person.sees("to:/no command")
    assert [m["role"] for m in Script.seen[-1]["messages"]] == ["system", "user", "assistant", "user"]
    assert Script.seen[-1]["messages"][2] == {"role": "assistant", "content": "to:one\ntwo", "reasoning_content": "let me\nthink"}
    assert Script.seen[-1]["messages"][3]["content"] == "/no command\n\nend"
    person.types(f"/save {tmp_path}/talk.json\n")
    person.sees("the conversation is in")
    saved = json.loads((tmp_path / "talk.json").read_text())
    assert saved["model"] == "scripted" and len(saved["messages"]) == 5
    person.types(f"/save {tmp_path}/talk.json\n")
    person.sees("is there already")
    person.types("/clear\n")
    person.sees("a new conversation")
    person.types("/unknown\n")
    person.sees("/unknown is no command")
    person.types(" /a question\n")
    person.sees("to: /a question")
    assert len(Script.seen[-1]["messages"]) == 2
    person.types("/quit\n")
    assert person.ends() == 0


def test_ctrl_c_ends_the_answer_and_not_the_program(url, home):
    person = Person(url, env=home)
    person.sees("> ")
    person.types("slow one\n")
    person.sees("part2 ")
    person.types("\x03")
    person.sees("stopped; what there is")
    person.sees("> ")
    person.types("half a line")
    person.sees("half a line")
    person.types("\x03")
    person.sees("> ")
    person.types("next\n")
    person.sees("to:next")
    messages = Script.seen[-1]["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant", "user"]
    assert messages[1]["content"].startswith("part0 part1 part2 ") and messages[2]["content"] == "next"
    person.sees("> ")
    person.types("\x04")
    assert person.ends() == 0


def test_a_question_that_failed_is_forgotten(url, home):
    person = Person(url, env=home)
    person.sees("> ")
    person.types("503\n")
    person.sees("/health")
    person.types("next\n")
    person.sees("to:next")
    assert [m["content"] for m in Script.seen[-1]["messages"]] == ["next"]
    person.sees("> ")
    person.types("\x04")
    assert person.ends() == 0


def test_control_characters_of_an_answer_do_not_reach_the_terminal(url, home):
    person = Person(url, "controls", env=home)
    assert person.sees(r"2Jc") == "a[31mb2Jc"
    person.ends()


def test_thinking_is_dim_and_no_color_is_respected(url, home):
    person = Person(url, "hello", env=home)
    assert "\x1b[2mlet me\r\nthink\x1b[0m\r\nto:hello\r\n" in person.sees(r"first token after [\d.]+ s\)")
    assert person.ends() == 0
    person = Person(url, "hello", env={**home, "NO_COLOR": "1"})
    shown = person.sees(r"first token after [\d.]+ s\)")
    assert "[thinking] let me\r\nthink\r\n[answer] to:hello\r\n" in shown and "\x1b" not in shown
    assert person.ends() == 0


def test_the_real_server_answers(server, home):
    done = piped(server.url, "--temperature", "0", input="What is 27 + 58?\n")
    assert done.returncode == 0 and "85" in done.stdout and "[" not in done.stdout
    person = Person(server.url, "--temperature", "0", env=home)
    person.sees("> ")
    person.types("What is 27 + 58?\n")
    assert "85" in person.sees(r"tokens/s, first token after [\d.]+ s\)")
    person.sees("> ")
    person.types("\x04")
    assert person.ends() == 0


def test_the_real_server_says_what_is_too_much(server):
    done = piped(server.url, "--max-tokens", "100000000", "hello")
    assert done.returncode == 1 and "400: This model's maximum context length" in done.stderr


def test_too_long_a_conversation_can_be_begun_anew(url, home):
    person = Person(url, env=home)
    person.sees("> ")
    person.types("next\n")
    person.sees("to:next(?s:.*)> ")
    person.types("400\n")
    person.sees("/clear")
    person.sees("> ")
    person.types("\x04")
    assert person.ends() == 0


# Pictures.

@pytest.fixture
def pictures(tmp_path):
    """Paths: of two kinds that are taken, and of what is none."""
    files = {"red.png": RED, "a b.jpg": b"\xff\xd8\xff of a camera", "text.png": b"no picture", "empty.gif": b""}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


def part(data, kind):
    return {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{base64.b64encode(data).decode()}"}}


def test_pictures_go_before_the_question(url, pictures):
    done = piped(url, "--image", "red.png", "--image", "a b.jpg", "what", "is", "it?", cwd=pictures)
    assert (done.returncode, done.stdout, done.stderr) == (0, "to:what is it?\n", "")
    sent = [part(RED, "png"), part(b"\xff\xd8\xff of a camera", "jpeg"), {"type": "text", "text": "what is it?"}]
    assert Script.seen[-1]["messages"] == [{"role": "user", "content": sent}]
    assert piped(url, "--image=red.png", input="and this?\n", cwd=pictures).stdout == "to:and this?\n"
    assert Script.seen[-1]["messages"][0]["content"][0] == sent[0]


@pytest.mark.parametrize("name, why", [
    ("none.png", "--image none.png: No such file or directory"), (".", "--image .: is a directory"), ("text.png", "--image text.png: not a picture"),
    ("empty.gif", "--image empty.gif: the file is empty")])
def test_a_file_that_is_no_picture_is_named(url, pictures, name, why):
    asked = len(Script.seen)
    done = piped(url, "--image", name, "hello", cwd=pictures)
    assert done.returncode == 1 and done.stdout == "" and why in done.stderr
    assert "No such" in why or "directory" in why or "JPEG, PNG, WebP or GIF" in done.stderr
    assert len(Script.seen) == asked


def test_pictures_of_a_conversation(url, home, pictures):
    person = Person(url, "--image", f"{pictures}/red.png", env=home)
    person.sees(r"\(1 picture\) > ")
    person.types(f"/image {pictures}/text.png\n")
    person.sees("/image .*text.png: not a picture")
    person.types(f"/image {pictures}/a b.jpg\n")
    person.sees(r"\(2 pictures for the next question\)(?s:.*)\(2 pictures\) > ")
    person.types("503\n")  # they are not lost with a question that got no answer
    person.sees(r"/health(?s:.*)\(2 pictures\) > ")
    person.types("/image\n")
    person.sees("no picture goes with(?s:.*)\n> ")
    person.types(f"/image {pictures}/red.png\n")
    person.sees(r"\(1 picture\) > ")
    person.types("first\n")
    person.sees("to:first(?s:.*)\n> ")
    person.types("second\n")
    person.sees("to:second")
    asked = [m["content"] for m in Script.seen[-1]["messages"] if m["role"] == "user"]
    assert asked == [[part(RED, "png"), {"type": "text", "text": "first"}], "second"]
    person.types(f"/save {pictures}/talk.json\n")
    person.sees("the conversation is in")
    saved = json.loads((pictures / "talk.json").read_text())
    assert saved["messages"][0]["content"][0] == part(RED, "png")
    person.types("/quit\n")
    assert person.ends() == 0


@pytest.fixture(scope="module")
def seeing(seeing_model):  # noqa: F811
    running = Server(seeing_model, "--load-format", "dummy", "--device", "cpu", "--dtype", "float32", "--served-model-name", "sees",
                     "--limit-mm-per-prompt", '{"image": 2}')
    yield running
    assert running.stop() == 0


def test_a_model_that_sees_answers_by_what_it_sees(seeing, pictures):
    (pictures / "blue.png").write_bytes(BLUE)
    flags = ("--temperature", "0", "--max-tokens", "8", "--no-thinking")
    said = [piped(seeing.url, *flags, "--image", name, "What is it?", cwd=pictures) for name in ("red.png", "blue.png", "red.png")]
    assert [done.returncode for done in said] == [0, 0, 0], said
    assert said[0].stdout == said[2].stdout != said[1].stdout
    with open(pictures / "large.png", "wb") as large:  # nearly all of it is a hole
        large.write(RED)
        large.truncate((32 << 20) + 1)
    done = piped(seeing.url, "--image", "large.png", "What is it?", cwd=pictures)
    assert done.returncode == 1 and f"--image large.png: the file has {(32 << 20) + 1} bytes, and the server takes {32 << 20}" in done.stderr
    (pictures / "broken.png").write_bytes(RED[:200])
    done = piped(seeing.url, "--image", "broken.png", "What is it?", cwd=pictures)
    assert done.returncode == 1 and "messages[0].content[0].image_url" in done.stderr and "picture" in done.stderr


@pytest.fixture(scope="module")
def reading():
    running = Server("--language-model-only")
    yield running
    assert running.stop() == 0


def test_what_the_server_refuses_ends_no_conversation(seeing, reading, home, pictures):
    person = Person(seeing.url, "--max-tokens", "5", *["--image", f"{pictures}/red.png"] * 3, env=home)
    person.sees(r"\(3 pictures\) > ")
    person.types("What is it?\n")
    person.sees(r"more than 2 pictures in one request \(--limit-mm-per-prompt\)(?s:.*)/image(?s:.*)\(3 pictures\) > ")
    person.types("/image\n")
    person.sees("no picture goes with(?s:.*)\n> ")
    person.types("Hello\n")
    person.sees(r"first token after [\d.]+ s\)")
    person.types("/quit\n")
    assert person.ends() == 0
    person = Person(reading.url, "--max-tokens", "5", "--image", f"{pictures}/red.png", env=home)
    person.sees(r"\(1 picture\) > ")
    person.types("What is it?\n")
    person.sees(r"this model reads text only(?s:.*)\(1 picture\) > ")
    person.types("/image\n")
    person.sees("no picture goes with(?s:.*)\n> ")
    person.types("Hello\n")
    person.sees(r"first token after [\d.]+ s\)")
    person.types("/quit\n")
    assert person.ends() == 0
