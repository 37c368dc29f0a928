"""The page at "/" in a real browser, used as a person uses it. After each test nothing stands in the browser's console and no
request has left the server. Where there is no Chromium the tests are skipped, and ctest says so."""
import base64
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request

import openai
import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from conftest import Server
from test_pictures import BLUE, RED, model as seeing_model, part, png  # noqa: F401, a fixture

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
KEY = "page-key"
VIEWS = ("#chat", "#server", "#code")


@pytest.fixture(scope="module")
def browser():
    if not (CHROMIUM and DRIVER):
        # (test.sh installs them, and says that they must be there.)
        (pytest.fail if os.environ.get("BALTORO_TEST_BROWSER") == "must" else pytest.skip)("no chromium and chromedriver here: tools/install.sh test installs them")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1200,800"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_script_timeout(60)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def slow(browser):
    """Streams of any length, a byte each 20 ms."""
    running = Server("--load-format", "stand-in", "--stand-in-step-ms", "20")
    yield running
    running.stop()


@pytest.fixture(scope="module")
def locked(browser):
    running = Server("--load-format", "stand-in", "--api-key", KEY, "--served-model-name", "told-to-nobody")
    yield running
    running.stop()


class Page:
    def __init__(self, driver):
        self.driver = driver
        self.expected_errors = 0  # answers that the test provokes, which browsers note

    def open(self, server, path="/"):
        self.driver.get("about:blank")  # else another # is the same page
        self.origin = server.url
        self.driver.get(server.url + path)
        return self

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        return self.wait(lambda: [e for e in self.all(selector) if e.is_displayed()], selector)[0]

    def click(self, selector, index):
        """One of several, which the page may draw anew at that moment."""
        def clicked():
            try:
                self.all(selector)[index].click()
            except (IndexError, StaleElementReferenceException):
                return False
            return True
        self.wait(clicked, selector)

    def text(self, selector):
        return self.js("return document.querySelector(arguments[0])?.textContent ?? ''", selector)

    def wait(self, condition, what, seconds=30):
        return WebDriverWait(self.driver, seconds, 0.02).until(lambda _: condition(), what)

    def js(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def keys(self, *keys):
        self.driver.switch_to.active_element.send_keys(*keys)

    def cdp(self, command, **parameters):
        return self.driver.execute_cdp_cmd(command, parameters)

    def ask(self, text, **parameters):
        draft = self.one("#draft")
        self.set(**parameters)
        draft.send_keys(text, Keys.ENTER)

    def set(self, think=True, **parameters):
        self.js("document.querySelector('#thinking').checked = arguments[0]; for (const [id, value] of Object.entries(arguments[1]))"
                " document.getElementById(id.replace('_', '-')).value = value", think, parameters)

    def answered(self, count=1):
        self.wait(lambda: len(self.all("article .meta")) >= count and not self.one_running(), "the end of the answer")
        return self.js("return [...document.querySelectorAll('article.assistant .text')].at(-1).textContent")

    def one_running(self):
        return not self.js("return document.querySelector('#stop').hidden")


@pytest.fixture
def page(browser):
    page = Page(browser)
    browser.get("about:blank")
    browser.get_log("browser"), browser.get_log("performance")
    yield page
    page.cdp("Emulation.clearDeviceMetricsOverride")
    page.cdp("Emulation.setEmulatedMedia", features=[])
    severe = [line["message"] for line in browser.get_log("browser") if line["level"] in ("SEVERE", "WARNING")]
    assert len(severe) == page.expected_errors, severe
    asked = [json.loads(line["message"])["message"] for line in browser.get_log("performance")]
    urls = {m["params"]["request"]["url"] for m in asked if m["method"] == "Network.requestWillBeSent"}
    assert urls and all(url.startswith(page.origin + "/") or url == "about:blank" for url in urls), urls


def test_a_question_is_answered_and_thinking_unfolds(page, server):
    page.open(server).ask("What is 27 + 58?", temperature="0")
    assert "85" in page.answered()
    thinking = page.one("details.thinking")
    assert not thinking.get_property("open") and "Thought for" in thinking.text
    for is_open in (True, False):
        page.one("details.thinking summary").click()
        assert thinking.get_property("open") == is_open
        assert page.all("details.thinking div")[0].is_displayed() == is_open
    assert "tokens/s" in page.text(".meta") and "stop" in page.text(".meta")
    page.ask("What is 12 + 7?")
    page.answered(2)
    assert len(page.all("article.user")) == 2 and len(page.all(".meta button:not(:first-of-type)")) == 1


def test_it_streams_stops_and_regenerates(page, slow):
    page.open(slow).ask("Go on", think=False, max_tokens=3000)
    seen = set()
    # Long enough that the answer after it is seen while it is shorter, on a slow machine too.
    page.wait(lambda: seen.add(len(page.text(".text"))) or (len(seen) > 4 and max(seen) > 150), "a growing answer")
    page.keys(Keys.ESCAPE)
    said = page.answered()
    assert page.text(".meta").startswith("first after") and "stopped" in page.text(".meta")
    page.wait(lambda: b'finished_reason="abort"' in urllib.request.urlopen(slow.url + "/metrics").read(), "the server's abort")
    page.all(".meta button")[-1].click()
    page.wait(lambda: 0 < len(page.text(".text")) < len(said), "another answer in its place")
    page.one("#stop").click()
    page.answered()
    assert len(page.all("article.assistant")) == 1
    assert page.js("return document.activeElement.id") == "draft"
    page.one("#fresh").click()
    assert page.all("article") == []


def test_tool_calls_show_their_arguments_and_take_results(page, server):
    page.open(server)
    page.one("#example").click()
    page.ask("What is the weather in Paris?", temperature="0")
    page.answered()
    assert page.text(".call code") == "get_weather" and json.loads(page.text(".call pre")) == {"city": "Paris"}
    page.one(".results textarea").send_keys('{"weather": "rain"}')
    page.one(".results button").click()
    assert page.answered(2)
    page.js("document.querySelector('#tools').value = '{'")
    page.ask("And in Rome?")
    assert "not JSON" in page.one("#tools-error").text and len(page.all("article.user")) == 1


def test_a_refusal_is_shown_and_the_chat_goes_on(page, server):
    page.open(server).ask("Hello!", temperature=1000)
    page.expected_errors = 1
    page.answered()
    alert = page.one("article [role=alert]")
    assert alert.text.startswith("400: temperature") and "error" in page.text("#said")
    page.one("button[type=reset]").click()
    page.all(".meta button")[-1].click()
    page.wait(lambda: page.text("article .text"), "an answer in its place")
    assert page.answered() and not page.all("[role=alert]:not(:empty)")


def test_an_answer_is_markdown_and_never_markup(page, server):
    text = ("# Title\nSome **bold** and `code`, <img src=x onerror=alert(1)> & [a](javascript:1)\nsecond line\n\n- one\n- two\n"
            "1. first\n```py\nif a < b:\n    **no**\n```\nlast <b>line</b> " + "long " * 2000)
    whole, slowly = page.open(server).driver.execute_async_script("""
        const [text, done] = arguments;
        import(new URL("page/markdown.js", location)).then(({ Markdown }) => {
          const drawn = (pieces) => { const root = document.createElement("div"); const it = new Markdown(root);
            for (const piece of pieces) it.push(piece); root.normalize(); return root.innerHTML; };
          done([drawn([text]), drawn(text.slice(0, 1200))].concat(drawn([text.slice(0, 1200)]))); });
        """, text)[:2]
    assert "<img" not in whole and "&lt;img" in whole and "<b>" not in whole and "href" not in whole
    for piece in ("<h3>Title</h3>", "<strong>bold</strong>", "<code>code</code>", "<ul><li>one</li><li>two</li></ul>",
                  '<ol><li value="1">first</li></ol>', "if a &lt; b:\n    **no**\n</code></pre>"):
        assert piece in whole
    assert whole.startswith(slowly[:-4]), "drawn in pieces it is the same"


def test_with_a_key(page, locked):
    page.open(locked)
    assert page.one("#key-form").is_displayed()
    assert "told-to-nobody" not in page.js("return document.documentElement.outerHTML")
    page.keys("wrong", Keys.ENTER)
    page.expected_errors = 1
    page.wait(lambda: page.text("#key-error"), "a refusal")
    assert "not one of" in page.text("#key-error") and not page.all("#view-chat")[0].is_displayed()
    page.keys(KEY, Keys.ENTER)
    page.wait(lambda: page.text("#model") == "told-to-nobody", "the model's name")
    page.ask("Hello", think=False, max_tokens=5)
    assert page.answered()
    page.driver.refresh()
    page.one("#draft")
    assert page.js("return Object.values(sessionStorage)") == [KEY] and page.js("return localStorage.length") == 0
    first = page.driver.current_window_handle
    page.driver.switch_to.new_window("tab")
    page.driver.get(locked.url)
    assert page.one("#key-form").is_displayed(), "another tab has no key"
    page.driver.close()
    page.driver.switch_to.window(first)
    page.driver.get(locked.url + "/#server")
    page.one("#forget").click()
    assert page.one("#key-form").is_displayed()
    assert "told-to-nobody" not in page.js("return document.documentElement.outerHTML")


CONTRAST = """
const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => [r, g, b].map((c) => c / 255).map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
  .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
const ground = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c[3] !== 0) return c; } };
return [...document.querySelectorAll("h1, h2, p, a, button, summary, label, article, b, span, td, dt, dd, figcaption, code")]
  .filter((e) => e.checkVisibility() && e.textContent.trim())
  .map((e) => { const a = light(rgb(getComputedStyle(e).color)), b = light(ground(e));
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.outerHTML.slice(0, 80)]; });
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_are_both_readable(page, server, scheme):
    page.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    page.open(server).ask("Hello!")
    page.answered()
    ground = page.js("return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert min(ground) > 200 if scheme == "light" else max(ground) < 60
    for view in VIEWS:
        page.one(f"nav a[href='{view}']").click()
        found = page.js(CONTRAST)
        assert len(found) > 5 and min(found)[0] >= 4.5, min(found)


def test_a_phone_scrolls_in_one_direction_only(page, server):
    page.cdp("Emulation.setDeviceMetricsOverride", width=360, height=740, deviceScaleFactor=1, mobile=True)
    page.open(server).ask("Hello!")
    page.answered()
    page.js("""const pre = document.createElement("pre"); pre.textContent = "word".repeat(500); document.querySelector(".text").append(pre);
        document.querySelector(".text").append("word".repeat(500)); document.querySelector("#parameters").open = true;""")
    for view in VIEWS:
        page.one(f"nav a[href='{view}']").click()
        page.wait(lambda: len(page.text("main:not([hidden])")) > 100, "the view")
        time.sleep(0.3)
        assert page.js("return document.documentElement.scrollWidth") == 360, view
        assert page.js("return innerWidth") == 360, view
    page.open(server, "/docs")
    page.js("for (const e of document.querySelectorAll('details')) e.open = true")
    assert page.js("return document.documentElement.scrollWidth") == 360


def test_keyboard_alone(page, slow):
    page.open(slow)
    page.wait(lambda: page.js("return document.activeElement.id") == "draft", "focus on the question")
    page.keys("one", Keys.SHIFT, Keys.ENTER, Keys.NULL, "two")
    assert page.one("#draft").get_property("value") == "one\ntwo"
    page.set(think=False, max_tokens=3000)
    page.keys(Keys.ENTER)
    page.wait(lambda: page.text(".text"), "the first text")
    assert page.text("article.user") == "one\ntwo" and page.text("#said") == "The model is answering."
    page.keys(Keys.ESCAPE)
    page.answered()
    assert page.text("#said").startswith(page.text(".text").strip()[:20]) and "stopped" in page.text("#said")
    order = []  # from here round to the beginning, and on
    for _ in range(40):
        page.keys(Keys.TAB)
        name, outline = page.js("const e = document.activeElement; return [e === document.body ? '' : e.id || e.textContent.slice(0, 12),"
                                " getComputedStyle(e).outlineStyle]")
        assert outline != "none" or not name, name
        order.append(name)
    wanted = ["Chat", "Server", "Code", "API", "log", "Regenerate", "draft", "send", "fresh", "Parameters"]
    order = order[order.index("Chat"):]
    assert list(dict.fromkeys(name for name in order if name in wanted)) == wanted, order


def test_the_server_view(page, server, client, model):
    page.open(server, "/#server")
    for _ in range(2):
        with pytest.raises(openai.BadRequestError):
            client.completions.create(model=model, prompt="a", temperature=-1)
    client.completions.create(model=model, prompt="1 2 3", max_tokens=100, extra_body={"ignore_eos": True})
    page.wait(lambda: "temperature" in page.text("#errors"), "the error")
    page.wait(lambda: "invalid" in page.text("#refused"), "the count")
    assert len(page.all("#charts figure")) == 6
    page.wait(lambda: all(p.get_attribute("d") for p in page.all("#charts path")[:4]), "lines")
    page.wait(lambda: page.js("return document.querySelector('#charts b').textContent") != "–", "a rate")
    widths = page.js("return [...document.querySelectorAll('.bar rect:not(.kv-use)')].map((r) => parseFloat(r.getAttribute('width')))")
    assert len(widths) >= 4 and abs(sum(widths) - 100) < 0.01
    assert "KV cache" in page.text("#plan table") and "GiB" in page.text("#plan table")
    assert "deepseek" in page.text("#facts") or "kimi" in page.text("#facts")
    assert page.text("#health") == "serving"


def test_what_is_copied_runs(page, locked):
    page.open(locked).keys(KEY, Keys.ENTER)
    draft = page.one("#draft")
    draft.send_keys('It\'s "odd" \\ $HOME')
    page.set(think=False, max_tokens=8)
    page.js("document.querySelector('#example').click()")
    page.one("nav a[href='#code']").click()
    shown = [code.text for code in page.wait(lambda: page.all("#code pre"), "code")]
    assert len(shown) == 3 and not any(KEY in text for text in shown)
    copied = []
    for index in range(3):
        page.one("nav a[href='#code']").click()
        page.click("#code button", index)
        page.wait(lambda: page.js("return document.querySelectorAll('#code button')[arguments[0]]?.textContent", index) == "Copied", "the copy")
        page.one("nav a[href='#chat']").click()
        page.js("document.querySelector('#system').value = ''; document.querySelector('#parameters').open = true")
        page.one("#system").send_keys(Keys.CONTROL, "v")
        copied.append(page.one("#system").get_property("value"))
        page.js("document.querySelector('#system').value = ''")
    assert [text.strip() for text in copied] == [text.strip() for text in shown]
    environment = {**os.environ, "BALTORO_API_KEY": KEY}
    for command in (["bash", "-c", copied[0]], [sys.executable, "-c", copied[1]]):
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
        assert ran.returncode == 0 and ran.stdout.strip(), ran.stderr
    assert copied[0] and "data: [DONE]" in subprocess.run(["bash", "-c", copied[0]], capture_output=True, text=True, env=environment).stdout
    said = page.driver.execute_async_script("""
        const done = arguments[0], said = [], console = { log: (text) => said.push(text) };
        const process = { env: { BALTORO_API_KEY: "%s" } };
        (async () => { %s })().then(() => done(said.join("")), (error) => done("failed: " + error));""" % (KEY, copied[2]))
    assert said and not said.startswith("failed"), said


def test_behind_a_path_of_a_proxy(page):
    mounted = Server("--load-format", "stand-in", "--root-path", "/behind/it/")
    try:
        page.open(mounted, "/behind/it/").ask("Hello", think=False, max_tokens=5)
        assert page.answered()
        page.one("nav a[href='#code']").click()
        assert f"{mounted.url}/behind/it/v1/chat/completions" in page.text("#code")
        page.one("nav a[href='docs']").click()
        assert f"URL={mounted.url}/behind/it" in page.wait(lambda: page.text("pre"), "the commands")
    finally:
        mounted.stop()


@pytest.fixture(scope="module")
def seeing(seeing_model):  # noqa: F811
    running = Server(seeing_model, "--load-format", "dummy", "--device", "cpu", "--dtype", "float32", "--served-model-name", "sees",
                     "--limit-mm-per-prompt", '{"image": 3}')
    yield running
    running.stop()


# A file that comes by `way`, as a person would drop or paste it. (What a person does outside the page no driver can.)
GIVE = """
const [way, files] = arguments;
const data = new DataTransfer();
for (const [name, base64] of files) data.items.add(new File([Uint8Array.from(atob(base64), (c) => c.charCodeAt(0))], name));
const at = document.querySelector(way === "paste" ? "#draft" : "#log");
const event = (kind) => new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true });
if (way === "paste") return !at.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
const taken = !at.dispatchEvent(event("dragover"));
const shown = document.querySelector("#ask").classList.contains("dropping");
at.dispatchEvent(event("drop"));
return [taken, shown, document.querySelector("#ask").classList.contains("dropping")];
"""


class Asked:
    """The bodies of the page's requests, which it keeps for the test."""

    def __init__(self, page):
        self.page = page
        page.js("""window.asked = []; const fetched = window.fetch;
            window.fetch = (path, options) => { if (options?.body) window.asked.push(JSON.parse(options.body)); return fetched(path, options); };""")

    def contents(self):
        return [message["content"] for message in self.page.js("return window.asked.at(-1).messages") if message["role"] == "user"]


def give(page, way, *files):
    return page.js(GIVE, way, [[name, base64.b64encode(data).decode()] for name, data in files])


def names(page, where="#pictures canvas"):
    return page.js("return [...document.querySelectorAll(arguments[0])].map((e) => e.ariaLabel)", where)


def sees_pictures(page, server):
    page.open(server)
    page.one("#add")
    return Asked(page)


def test_pictures_are_chosen_dropped_and_pasted(page, seeing, tmp_path):
    asked = sees_pictures(page, seeing)
    assert page.one("#picture-limits").text == "Paste, drop or add up to 3 pictures a conversation, 24 MiB together."
    (tmp_path / "red.png").write_bytes(RED)
    (tmp_path / "blue.png").write_bytes(BLUE)
    page.all("#files")[0].send_keys(f"{tmp_path}/red.png\n{tmp_path}/blue.png")
    page.wait(lambda: names(page) == ["Picture red.png", "Picture blue.png"], "the pictures")
    pixel = page.js("return [...document.querySelector('#pictures canvas').getContext('2d').getImageData(50, 50, 1, 1).data]")
    assert pixel == [200, 10, 10, 255]
    page.one("[aria-label='Remove red.png']").click()
    assert names(page) == ["Picture blue.png"] and page.js("return document.activeElement.ariaLabel") == "Remove blue.png"
    assert give(page, "drop", ("red.png", RED)) == [True, True, False]
    page.wait(lambda: names(page) == ["Picture blue.png", "Picture red.png"], "the dropped picture")
    assert page.text("#said") == "2 pictures for the question."
    page.ask("What are they?", max_tokens=5)
    page.answered()
    first = [part(BLUE), part(RED), {"type": "text", "text": "What are they?"}]
    assert asked.contents() == [first]
    assert names(page) == [] and not page.all("#pictures")[0].is_displayed()
    assert names(page, "article.user canvas") == ["Picture blue.png", "Picture red.png"] and page.text("article.user") == "What are they?"
    page.ask("And which was first?")
    page.answered(2)
    assert asked.contents() == [first, "And which was first?"]
    assert give(page, "paste", ("image.png", RED)) is True
    page.wait(lambda: names(page) == ["Picture image.png"], "the pasted picture")
    page.one("#draft").send_keys(Keys.ENTER)  # a picture alone is a question too
    page.answered(3)
    assert asked.contents()[2] == [part(RED)]
    give(page, "drop", ("fourth.png", BLUE))
    page.wait(lambda: page.text("#pictures-error"), "the limit")
    assert page.text("#pictures-error") == "fourth.png: a conversation may have 3 of them: begin a new chat. "
    page.one("#fresh").click()
    give(page, "drop", ("fourth.png", BLUE))
    page.wait(lambda: names(page) == ["Picture fourth.png"] and not page.text("#pictures-error"), "a new chat's picture")


def test_text_that_is_pasted_stays_text(page, seeing):
    sees_pictures(page, seeing)
    assert page.js("""const data = new DataTransfer(); data.items.add(new File(["x"], "cells.png")); data.setData("text/plain", "a\tb");
        return document.querySelector("#draft").dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));""")
    assert names(page) == [] and page.text("#pictures-error") == ""


@pytest.mark.parametrize("name, data, why", [
    ("notes.txt", b"no picture", "JPEG, PNG, WebP or GIF"), ("broken.png", RED[:40], "cannot be read as a picture"),
    ("narrow.png", png(2010, 10, (1, 2, 3)), "its longer side may be 200 times the shorter one")])
def test_a_file_that_is_no_picture_for_the_server_is_not_taken(page, seeing, name, data, why):
    sees_pictures(page, seeing)
    give(page, "drop", (name, data), ("red.png", RED))
    page.wait(lambda: names(page) == ["Picture red.png"], "the good one of the two")
    assert page.text("#pictures-error").startswith(name + ": ") and why in page.text("#pictures-error")
    assert page.one("#pictures-error").get_attribute("role") == "alert"


def test_too_large_a_file_is_not_read(page, seeing):
    sees_pictures(page, seeing)
    page.js("""const data = new DataTransfer(); data.items.add(new File([new Uint8Array(25 << 20)], "large.png"));
        document.querySelector("#log").dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));""")
    page.wait(lambda: page.text("#pictures-error"), "the limit")
    assert "large.png: all pictures of a conversation may have 24 MiB together" in page.text("#pictures-error")


def test_a_question_that_is_refused_can_be_edited(page, seeing):
    asked = sees_pictures(page, seeing)
    # Whole as far as the browser looks, which is less than the server.
    give(page, "drop", ("red.png", RED))
    page.wait(lambda: names(page), "the picture")
    page.expected_errors = 1
    page.ask("What is it?", temperature=1000)
    page.answered()
    assert page.one("article [role=alert]").text.startswith("400: temperature")
    page.js("document.querySelector('#temperature').value = ''")
    buttons = page.all(".meta button")
    assert [button.text for button in buttons] == ["Edit the question", "Regenerate"]
    buttons[0].click()
    assert page.all("article") == [] and names(page) == ["Picture red.png"]
    assert page.one("#draft").get_property("value") == "What is it?" and page.js("return document.activeElement.id") == "draft"
    page.one("[aria-label='Remove red.png']").click()
    page.ask("", max_tokens=5)
    page.answered()
    assert asked.contents() == ["What is it?"] and not page.all("[role=alert]:not(:empty)")


def test_pictures_with_the_keyboard_alone(page, seeing):
    sees_pictures(page, seeing)
    give(page, "paste", ("red.png", RED), ("blue.png", BLUE))
    page.wait(lambda: len(names(page)) == 2, "the pictures")
    page.one("#draft").click()
    order = []
    for _ in range(40):
        page.keys(Keys.TAB)
        order.append(page.js("const e = document.activeElement; return e.ariaLabel ?? e.textContent.slice(0, 12)"))
    start = order.index("Remove red.png")
    assert order[start:start + 5] == ["Remove red.png", "Remove blue.png", "Question", "Send", "Add pictures"]
    while page.js("return document.activeElement.ariaLabel") != "Remove blue.png":
        page.keys(Keys.TAB)
    page.keys(Keys.ENTER)
    assert names(page) == ["Picture red.png"] and page.js("return document.activeElement.ariaLabel") == "Remove red.png"
    page.keys(Keys.SPACE)
    assert names(page) == [] and page.js("return document.activeElement.id") == "draft"
    found = page.js(CONTRAST)
    assert min(found)[0] >= 4.5, min(found)


@pytest.fixture(scope="module")
def reading():
    running = Server("--language-model-only")
    yield running
    running.stop()


def test_a_model_that_reads_text_only_gets_no_pictures(page, reading):
    page.open(reading)
    page.wait(lambda: page.text("#health") == "serving", "what the server says of itself")
    for selector in ("#add", "#files", "#picture-limits", "#pictures"):
        assert not page.all(selector)[0].is_displayed()
    assert give(page, "drop", ("red.png", RED)) == [True, False, False], "the page is not left for the file"
    assert give(page, "paste", ("red.png", RED)) is False
    assert names(page) == [] and page.text("#pictures-error") == ""


def test_copied_code_reads_pictures_from_their_files(page, seeing, tmp_path):
    name = "it's a $pic`ture\\.png"
    (tmp_path / name).write_bytes(RED)
    sees_pictures(page, seeing)
    page.set(think=False, max_tokens=4, temperature=0)
    give(page, "drop", (name, RED))
    page.wait(lambda: names(page), "the picture")
    page.one("#draft").send_keys('It\'s "odd" \\ $HOME `id`')
    page.one("nav a[href='#code']").click()
    curl, python, javascript = [code.text for code in page.wait(lambda: page.all("#code pre"), "code")]
    assert "present folder" in page.text("#code") and max(map(len, (curl, python, javascript))) < 2500
    said = [subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
            for command in (["bash", "-c", curl], [sys.executable, "-c", python])]
    assert said[0].returncode == 0 and "data: [DONE]" in said[0].stdout, said[0].stdout + said[0].stderr
    pieces = [json.loads(line[6:]) for line in said[0].stdout.splitlines() if line.startswith("data: {")]
    text = "".join(choice["delta"].get("content") or "" for piece in pieces for choice in piece["choices"])
    assert said[1].returncode == 0 and said[1].stdout == text + "\n", said[1].stderr
    wanted = seeing.client().chat.completions.create(model="sees", temperature=0, max_tokens=4, reasoning_effort="none", messages=[
        {"role": "user", "content": [part(RED), {"type": "text", "text": 'It\'s "odd" \\ $HOME `id`'}]}])
    assert text == wanted.choices[0].message.content
    assert f"readFileSync({json.dumps(name)})" in javascript
    page.one("nav a[href='#chat']").click()
    page.one("#draft").clear()


def test_docs_commands_run(page, locked):
    page.open(locked, "/docs")
    blocks = [e.text for e in page.all("pre")]
    assert len(blocks) > 20 and blocks[0].startswith(f"URL={locked.url}\nKEY=")
    for command in blocks[1:]:
        wanted = ("404",) if "$ID" in command or "$FILE" in command else ("200",)
        ran = subprocess.run(["bash", "-euc", command + " -o /dev/null -w '%{http_code}'"], capture_output=True, text=True, timeout=30,
                             env={**os.environ, "URL": locked.url, "KEY": KEY, "MODEL": "told-to-nobody", "ID": "x", "FILE": "x"})
        assert ran.stdout in wanted, (command, ran.stdout, ran.stderr)
