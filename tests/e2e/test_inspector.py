"""The inspector in a real browser, in front of a real server: chromium, driven over WebDriver's plain HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

TOOLS = """
import base64

from aenv import Image, ToolError, register_reward, register_tool

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@register_tool(annotations={"readOnlyHint": True})
def repeat(word: str, times: int, separator: str | None = None) -> str:
    '''Say a word several times.'''
    return (separator or " ").join([word] * times)


@register_tool
def refuse(reason: str) -> str:
    '''Never agree.'''
    raise ToolError(f"refused because of {reason}", hint="ask again tomorrow")


@register_tool
def stumble() -> str:
    '''Fall over.'''
    return {}["missing"]


@register_tool
def paint() -> Image:
    return Image(base64.b64decode(PIXEL))


@register_tool(description='<img src=x onerror="window.pwned = true"> is only text')
def hostile(text: str) -> str:
    return text


@register_tool
def shout(megabytes: int) -> str:
    '''Say a lot.'''
    return "abcdefghi " * 100_000 * megabytes


@register_reward
def exact(answer: str) -> float:
    '''Full marks for 42.'''
    return 1.0 if answer == "42" else 0.0
"""

LATER_TOOLS = """
from aenv import register_tool


@register_tool
def newcomer() -> str:
    '''Was not there before the restart.'''
    return "hello"
"""

CHROMIUM_ARGUMENTS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-proxy-server",
    "--window-size=1280,900",
]

WAIT_FOR_TEXT = """
const [css, text, done] = arguments;
const holds = () => [...document.querySelectorAll(css)].some((node) => node.textContent.includes(text));
if (holds()) return done(true);
const observer = new MutationObserver(() => {
  if (!holds()) return;
  observer.disconnect();
  done(true);
});
observer.observe(document, { subtree: true, childList: true, characterData: true });
"""

LISTED_NAMES = "return [...document.querySelectorAll('#items .name')].map((each) => each.textContent)"

CONTROL_OF_LABEL = """
const label = [...document.querySelectorAll("#editor label")].find((each) => each.textContent === arguments[0]);
return label?.control?.id ?? null;
"""


class Browser:
    """As much of https://www.w3.org/TR/webdriver2/ as this file needs."""

    def __init__(self, driver_url: str, binary: str) -> None:
        # A proxy of the surroundings must not stand between us and 127.0.0.1.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        options = {"binary": binary, "args": CHROMIUM_ARGUMENTS}
        wanted = {"goog:chromeOptions": options, "timeouts": {"script": 20_000, "pageLoad": 20_000}}
        session = self._ask("POST", f"{driver_url}/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"{driver_url}/session/{session['sessionId']}"

    def open(self, url: str) -> None:
        # Two addresses that differ only after # would share one page, and with it the state of the test before.
        for each in ("about:blank", url):
            self._ask("POST", f"{self._session}/url", {"url": each})

    def run(self, script: str, *arguments: object) -> Any:
        return self._ask("POST", f"{self._session}/execute/sync", {"script": script, "args": arguments})

    def wait_for(self, css: str, text: str) -> None:
        """Until an element that matches holds the text; what the page says instead is the failure's message."""
        try:
            self._ask("POST", f"{self._session}/execute/async", {"script": WAIT_FOR_TEXT, "args": [css, text]})
        except WebDriverError as problem:
            pytest.fail(f"{css} never said {text!r} ({problem}); the page:\n{self.text('body')}")

    def text(self, css: str) -> str:
        return str(self.run("return document.querySelector(arguments[0])?.innerText ?? ''", css))

    def click(self, css: str) -> None:
        self._ask("POST", f"{self._element(css)}/click", {})

    def fill(self, label: str, text: str) -> None:
        """Type into the field of this label, as a reader would."""
        control = self.run(CONTROL_OF_LABEL, label)
        assert control is not None, f"no field is labelled {label!r}"
        self.type(f"#{control}", text)

    def type(self, css: str, text: str) -> None:
        element = self._element(css)
        self._ask("POST", f"{element}/clear", {})
        self._ask("POST", f"{element}/value", {"text": text})

    def close(self) -> None:
        self._ask("DELETE", self._session)

    def _element(self, css: str) -> str:
        found = self._ask("POST", f"{self._session}/element", {"using": "css selector", "value": css})
        return f"{self._session}/element/{next(iter(found.values()))}"

    def _ask(self, method: str, url: str, body: object = None) -> Any:
        payload = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, payload, {"Content-Type": "application/json"}, method=method)
        try:
            with self._opener.open(request, timeout=60) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as problem:
            with problem:
                raise WebDriverError(json.load(problem)["value"]["message"]) from problem


class WebDriverError(Exception):
    """chromedriver could not do what it was asked to."""


def _do_without(missing: str) -> NoReturn:
    reason = f"{missing} is not installed; try `apt install chromium chromium-driver`"
    if os.environ.get("AENV_CI") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = next(filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None)
    chromedriver = shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        _do_without("chromium" if chromium is None else "chromedriver")
    quiet = subprocess.DEVNULL
    with subprocess.Popen([chromedriver, "--port=0"], stdout=subprocess.PIPE, stderr=quiet, text=True) as driver:
        try:
            assert driver.stdout is not None
            ports = (re.search(r"on port ([1-9]\d*)", line) for line in driver.stdout)
            port = next(filter(None, ports))[1]
            with contextlib.closing(Browser(f"http://127.0.0.1:{port}", chromium)) as opened:
                yield opened
        finally:
            driver.terminate()


@contextlib.contextmanager
def serving(project: Path, port: int = 0) -> Iterator[str]:
    """The sandbox server on this project; yields its address."""
    readable, writable = os.pipe()
    command = [sys.executable, "-m", "aenv.sandbox", str(project), "--port", str(port), "--inspector"]
    with (
        (project / "server.log").open("a") as log,
        subprocess.Popen(
            [*command, "--ready-fd", str(writable)], pass_fds=[writable], stdout=log, stderr=log
        ) as server,
    ):
        try:
            os.close(writable)
            with os.fdopen(readable) as channel:
                ready = json.loads(channel.readline() or "{}")
            assert "url" in ready, f"the server did not start: {(project / 'server.log').read_text()}"
            yield ready["url"]
        finally:
            server.terminate()


def write_project(folder: Path) -> Path:
    (folder / "src").mkdir()
    (folder / "src" / "tools.py").write_text(TOOLS)
    (folder / "config.json").write_text(json.dumps({"name": "inspected", "version": "1.2.3"}))
    return folder


@pytest.fixture(scope="module")
def inspector_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(write_project(tmp_path_factory.mktemp("inspected"))) as url:
        yield f"{url}/inspector/"


def show(browser: Browser, inspector_url: str, kind: str, name: str) -> None:
    browser.open(f"{inspector_url}#{kind}/{name}")
    browser.wait_for("#subject-name", name)


def test_the_page_lists_what_the_environment_offers(browser: Browser, inspector_url: str) -> None:
    browser.open(inspector_url)
    browser.wait_for("#items", "repeat")

    assert set(browser.run(LISTED_NAMES)) >= {"repeat", "refuse", "stumble", "paint", "hostile", "exact"}
    assert browser.text(".brand") == "inspected@1.2.3"
    browser.wait_for("#health", "healthy")


def test_the_search_narrows_the_list(browser: Browser, inspector_url: str) -> None:
    show(browser, inspector_url, "tool", "repeat")

    browser.type("#search", "full marks")

    assert browser.run(LISTED_NAMES) == ["exact"]


def test_a_filled_form_is_called_and_its_result_shown_with_status_and_duration(
    browser: Browser, inspector_url: str
) -> None:
    show(browser, inspector_url, "tool", "repeat")
    browser.fill("word", "hop")
    browser.fill("times", "3")
    browser.click("#call")

    browser.wait_for("#outcome pre", "hop hop hop")
    assert re.search(r"HTTP 200\s+[\d.,]+ ms\s+\d+ B", browser.text("#meta"))
    assert re.search(r"call id call_[0-9a-f]+", browser.text("#outcome"))
    assert "read-only" in browser.text("#head")


def test_an_optional_argument_is_left_out_until_it_is_typed(browser: Browser, inspector_url: str) -> None:
    show(browser, inspector_url, "tool", "repeat")
    browser.fill("word", "hop")
    browser.fill("times", "2")
    browser.click("#mode-json")
    arguments = "return JSON.parse(document.querySelector('#editor .code').value)"
    assert browser.run(arguments) == {"word": "hop", "times": 2}

    browser.click("#mode-form")
    browser.fill("separator", "-")
    browser.click("#mode-json")
    assert browser.run(arguments) == {"word": "hop", "times": 2, "separator": "-"}


def test_a_history_entry_brings_its_arguments_and_result_back(browser: Browser, inspector_url: str) -> None:
    show(browser, inspector_url, "tool", "repeat")
    browser.fill("word", "first")
    browser.fill("times", "1")
    browser.click("#call")
    browser.wait_for("#outcome pre", "first")
    browser.fill("word", "second")
    browser.click("#call")
    browser.wait_for("#outcome pre", "second")

    browser.click("#history li:last-child button")

    browser.wait_for("#outcome pre", "first")
    assert browser.run("return document.querySelector('#editor textarea').value") == "first"


def test_a_refusal_shows_its_code_and_hint(browser: Browser, inspector_url: str) -> None:
    show(browser, inspector_url, "tool", "refuse")
    browser.fill("reason", "rain")
    browser.click("#call")

    browser.wait_for("#outcome .sentence", "refused because of rain")
    assert browser.text("#outcome .hint") == "hint: ask again tomorrow"


def test_an_exception_shows_the_authors_traceback(browser: Browser, inspector_url: str) -> None:
    show(browser, inspector_url, "tool", "stumble")
    browser.click("#call")

    browser.wait_for("#outcome details pre", 'return {}["missing"]')
    assert "tool.failed" in browser.text("#outcome .badges")
    assert "KeyError" in browser.text("#outcome .badges")


def test_a_missing_argument_is_complained_about_next_to_its_field(browser: Browser, inspector_url: str) -> None:
    show(browser, inspector_url, "tool", "repeat")
    browser.click("#call")

    browser.wait_for("#outcome .badges", "arguments.invalid")
    complaint = "return document.activeElement.closest('.field').querySelector('.error').textContent"
    assert "required" in browser.run(complaint)


def test_an_image_is_shown_as_one(browser: Browser, inspector_url: str) -> None:
    show(browser, inspector_url, "tool", "paint")
    browser.click("#call")

    browser.wait_for("#outcome figcaption", "image/png")
    decoded = (
        "const image = document.querySelector('#outcome img'); return image.decode().then(() => image.naturalWidth)"
    )
    assert browser.run(decoded) == 1


def test_a_large_result_is_cut_for_display_and_can_be_downloaded(browser: Browser, inspector_url: str) -> None:
    show(browser, inspector_url, "tool", "shout")
    browser.fill("megabytes", "10")
    browser.click("#call")

    browser.wait_for("#outcome .notice", "The first 100,000 of 10,000,000 characters are shown")
    assert "Download" in browser.text("#outcome .actions")


def test_a_tool_without_a_description_shows_nothing_in_its_place(browser: Browser, inspector_url: str) -> None:
    show(browser, inspector_url, "tool", "paint")

    assert browser.text("#head").split() == ["paint", "tool", "POST", "/tools/paint", "Input", "schema"]


def test_a_reward_is_called_and_keeps_its_decimal_point(browser: Browser, inspector_url: str) -> None:
    show(browser, inspector_url, "reward", "exact")
    browser.fill("answer", "42")
    browser.click("#call")

    browser.wait_for("#outcome pre", "1.0")


def test_markup_in_a_description_or_a_result_is_text_and_runs_nothing(browser: Browser, inspector_url: str) -> None:
    markup = '<img src=x onerror="window.pwned = true">'
    show(browser, inspector_url, "tool", "hostile")
    browser.fill("text", markup)
    browser.click("#call")

    browser.wait_for("#outcome pre", markup)
    assert markup in browser.text("#head")
    assert browser.run("return document.images.length") == 0
    assert browser.run("return window.pwned ?? 'unharmed'") == "unharmed"


def test_a_restarted_server_is_noticed_and_the_form_keeps_its_content(browser: Browser, tmp_path: Path) -> None:
    project = write_project(tmp_path)
    with serving(project) as url:
        show(browser, f"{url}/inspector/", "tool", "repeat")
        browser.fill("word", "precious")
    browser.run("window.dispatchEvent(new Event('focus'))")
    browser.wait_for("#banner", "does not answer")

    (project / "src" / "later.py").write_text(LATER_TOOLS)
    with serving(project, port=int(url.rpartition(":")[2])):
        browser.wait_for("#items", "newcomer")
        assert browser.run("return document.querySelector('#editor textarea').value") == "precious"
        assert browser.text("#banner") == ""
