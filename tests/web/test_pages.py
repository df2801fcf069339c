"""The pages, driven as a person would: by pointer, finger and keyboard."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import web_digits
import web_lora
import web_text

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.web.chromium import FAST, Chromium
from volta_fn import nn, random

READY = "new Promise(resolve => { const look = () => document.documentElement.dataset.ready ? resolve() : setTimeout(look, 30); look(); })"

#: Resolves when a condition holds, and fails with the page's message if there is one, or after three minutes.
UNTIL = """new Promise((resolve, reject) => {
  const start = performance.now();
  const look = () => {
    const failure = document.getElementById('failure').textContent;
    if (failure) reject(new Error(failure));
    else if (CONDITION) resolve();
    else if (performance.now() - start > 180000) reject(new Error('it does not come to hold: ' + document.body.innerText));
    else setTimeout(look, 20);
  };
  look();
})"""


@pytest.fixture
def browser() -> Iterator[Chromium]:
    """A browser."""
    with Chromium(FAST, size=(1100, 900)) as opened:
        yield opened


def opened(browser: Chromium, page: Path) -> None:
    """Open a page and wait until it is ready."""
    browser.open(page)
    browser.evaluate(READY)
    assert text(browser, "failure") == ""


def text(browser: Chromium, name: str) -> str:
    return browser.evaluate(f"document.getElementById({name!r}).textContent")


def until(browser: Chromium, condition: str) -> None:
    browser.evaluate(UNTIL.replace("CONDITION", condition))


def centre(browser: Chromium, selector: str) -> tuple[float, float]:
    """Scroll an element into view, and return where it is."""
    script = """async selector => {
      const element = document.querySelector(selector);
      element.scrollIntoView({block: 'center'});
      for (const frame of [1, 2]) await new Promise(requestAnimationFrame);  // so that touches find it there
      const {x, y, width, height} = element.getBoundingClientRect();
      return [x + width / 2, y + height / 2];
    }"""
    x, y = browser.run(script, selector)
    return x, y


def click(browser: Chromium, selector: str, touch: bool = False) -> None:
    """Press and release the mouse, or a finger, on an element."""
    x, y = centre(browser, selector)
    browser.pointer("Pressed", x, y, touch)
    browser.pointer("Released", x, y, touch)


def draw(browser: Chromium, points: list[tuple[float, float]], touch: bool = False) -> None:
    """Draw a line through points of the drawing, whose sides are from -1 to 1."""
    x, y = centre(browser, "#drawing")
    at = [(x + 130 * a, y + 130 * b) for a, b in points]
    browser.pointer("Pressed", *at[0], touch)
    for (ax, ay), (bx, by) in itertools.pairwise(at):
        for k in range(1, 7):
            browser.pointer("Moved", ax + (bx - ax) * k / 6, ay + (by - ay) * k / 6, touch)
    browser.pointer("Released", *at[-1], touch)


SEVEN = [(-0.5, -0.7), (0.5, -0.7), (0.1, 0.1), (-0.1, 0.8)]


def exceptions(browser: Chromium) -> list[Any]:
    """Return what the page's scripts have thrown."""
    return [event["params"] for event in browser.events if event.get("method") == "Runtime.exceptionThrown"]


def test_the_digits_page_learns_to_read_digits_that_it_never_saw(browser: Chromium, tmp_path: Path) -> None:
    web_digits.main(["--out", str(tmp_path)])
    opened(browser, tmp_path / "digits.html")
    assert text(browser, "answer") == "0123456789"  # no numbers before anything is drawn
    assert browser.evaluate("find('drawing').getAttribute('role')") == "application"
    assert browser.evaluate("find(find('drawing').getAttribute('aria-labelledby')).textContent") == "Draw a digit"
    draw(browser, SEVEN)
    until(browser, "document.getElementById('seen').textContent.startsWith('untrained: a guess is ')")
    assert "%" in text(browser, "answer")
    click(browser, "#train")
    until(browser, "parseFloat(document.getElementById('unseen').textContent) >= 97")
    click(browser, "#train")
    until(browser, "document.getElementById('train').textContent === 'Train'")
    assert browser.evaluate("app.run('evaluate', {}, ['accuracy']).then(({accuracy}) => accuracy[0])") >= 0.96  # some steps later
    draw(browser, SEVEN)
    until(browser, "document.getElementById('seen').textContent !== ''")
    correct_by_key(browser)
    by_keyboard(browser)
    download(browser, tmp_path)
    click(browser, "#reset")
    until(browser, "document.getElementById('training').textContent === ''")
    assert browser.evaluate("app.run('evaluate', {}, ['accuracy']).then(({accuracy}) => accuracy[0])") < 0.5
    assert exceptions(browser) == []


def correct_by_key(browser: Chromium) -> None:
    """Teach the page that the drawing is a seven."""
    for _ in range(2):
        browser.evaluate("document.getElementById('learned').textContent = ''")
        browser.key("7", "7")
        until(browser, "document.getElementById('learned').textContent.includes('this is 7')")
    until(browser, "document.getElementById('seen').textContent === 'looks like 7'")


def by_keyboard(browser: Chromium) -> None:
    """Clear the drawing and draw by keys."""
    browser.evaluate("document.getElementById('drawing').focus()")
    browser.key("Delete")
    until(browser, "drawing.isEmpty && document.getElementById('seen').textContent === ''")
    browser.key("ArrowUp")
    browser.key(" ", " ")
    for _ in range(6):
        browser.key("ArrowDown")
    until(browser, "!drawing.isEmpty && document.getElementById('seen').textContent !== ''")
    ink = browser.evaluate("drawing.ink.getImageData(0, 0, 280, 280).data.filter((x, i) => i % 4 === 3 && x > 128).length")
    assert ink > 60 * 25


def download(browser: Chromium, folder: Path) -> None:
    """Download the weights, and load them in Python."""
    browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder), eventsEnabled=True)
    click(browser, "#save")
    while not any(event.get("params", {}).get("state") == "completed" for event in browser.events):
        browser.evaluate("new Promise(resolve => setTimeout(resolve, 20))")
    loaded = vf.io.load_safetensors(folder / "weights.safetensors")
    shown = browser.evaluate("app.read('model.out.weight').then(w => Array.from(w))")
    assert loaded["model.out.weight"].reshape(-1).tolist() == shown


def test_the_digits_page_on_a_phone(browser: Chromium, tmp_path: Path) -> None:
    web_digits.main(["--out", str(tmp_path)])
    browser.call("Emulation.setDeviceMetricsOverride", width=390, height=780, deviceScaleFactor=2, mobile=True)
    browser.call("Emulation.setTouchEmulationEnabled", enabled=True)
    opened(browser, tmp_path / "digits.html")
    assert browser.evaluate("document.documentElement.scrollWidth") <= 390
    click(browser, "#train", touch=True)
    until(browser, "document.getElementById('training').textContent.includes('step')")
    draw(browser, SEVEN, touch=True)
    until(browser, "!drawing.isEmpty && document.getElementById('seen').textContent !== ''")
    assert browser.evaluate("drawing.ink.getImageData(140, 40, 1, 1).data[3]") == 255  # the page did not scroll away from the finger
    assert exceptions(browser) == []


def test_the_text_page_goes_on_as_one_types_and_learns(browser: Chromium, tmp_path: Path) -> None:
    web_text.main(["--quick", "--out", str(tmp_path)])
    opened(browser, tmp_path / "text.html")
    until(browser, "document.getElementById('ahead').textContent.length === 32")
    click(browser, "#prompt")
    browser.type("def f(")
    until(browser, "document.getElementById('prompt').value.endsWith('def f(') && !isBusy")
    ahead, before = text(browser, "ahead"), browser.evaluate("document.getElementById('prompt').value")
    browser.key("Tab")
    assert browser.evaluate("document.getElementById('prompt').value") == before + ahead
    assert browser.evaluate("document.activeElement.id") == "prompt"
    until(browser, "document.getElementById('ahead').textContent.length === 32 && !isBusy")  # what is written moves the buttons below
    click(browser, "#train")
    until(browser, "document.getElementById('training').textContent.includes('step 10')")
    assert exceptions(browser) == []


def test_adapters_learn_in_the_text_page(browser: Chromium, tmp_path: Path) -> None:
    web_lora.main(["--quick", "--steps", "20", "--out", str(tmp_path)])
    opened(browser, tmp_path / "lora.html")
    until(browser, "document.getElementById('ahead').textContent.length === 32")
    click(browser, "#train")
    until(browser, "document.getElementById('training').textContent.includes('step 10')")
    assert exceptions(browser) == []


def plain_page(path: Path) -> None:
    """Write a page of three functions."""
    w = random.normal(random.key(0), (64, 3)) * 0.1

    def train(w: Any, x: Any, rate: Any, step: Any) -> Any:
        value, grad = vf.value_and_grad(lambda w: vnp.mean((x @ w - 1.0) ** 2))(w)
        return w - rate * grad, value

    S = vf.ShapeDtypeStruct
    functions = {
        "train": vf.web.Function(train, ["w", S((2, 64), "float32"), S((), "float32"), S((), "uint32")], ["w", "loss"]),
        "look": vf.web.Function(lambda w, picture: nn.softmax(picture.reshape(-1) @ w), ["w", S((8, 8), "float32")], ["shares"]),
        "add": vf.web.Function(lambda column: column.sum(), [S((64, 1), "float32")], ["total"]),
        "scale": vf.web.Function(lambda numbers, by: (numbers * by, numbers.sum()), [S((3,), "float32"), vnp.int32(2)], ["scaled", "sum"]),
    }
    vf.export_web(path, state={"w": w}, functions=functions, page=vf.web.Plain(title="A & B </script>", train="train", counter="step"))


def test_the_plain_page_has_fields_and_results(browser: Chromium, tmp_path: Path) -> None:
    plain_page(tmp_path / "plain.html")
    opened(browser, tmp_path / "plain.html")
    assert browser.evaluate("document.title") == "A & B </script>"
    click(browser, "[data-input=numbers] textarea")
    browser.type("1, 2.5\n3")
    assert browser.evaluate("document.querySelector('[data-input=by] input').value") == "2"
    click(browser, "[data-input=by] input")
    browser.call("Input.dispatchKeyEvent", type="rawKeyDown", key="a", code="KeyA", modifiers=2, commands=["selectAll"])
    browser.type("4")
    click(browser, "#run-scale")
    until(browser, "document.getElementById('results-scale').textContent.includes('sum = 6.5')")
    assert "41012" in browser.evaluate("document.querySelector('#results-scale table').textContent")
    assert browser.evaluate("document.querySelector('[data-input=column] canvas') === null")  # 64 = 8², but a column is no picture
    x, y = centre(browser, "[data-input=picture] canvas")
    browser.pointer("Pressed", x, y)
    browser.pointer("Moved", x + 30, y)
    browser.pointer("Released", x + 30, y)
    click(browser, "#run-look")
    until(browser, "document.querySelectorAll('#results-look .bars i').length === 3")
    click(browser, "[data-input=numbers] textarea")
    browser.type(" four")
    click(browser, "#run-scale")
    message = "document.getElementById('failure').textContent.includes('numbers should be numbers, but \"four\" is not one')"
    browser.evaluate(f"new Promise(resolve => {{ const look = () => {message} ? resolve() : setTimeout(look, 20); look(); }})")
    assert exceptions(browser) == []


def test_the_plain_page_trains(browser: Chromium, tmp_path: Path) -> None:
    plain_page(tmp_path / "plain.html")
    opened(browser, tmp_path / "plain.html")
    browser.run("text => { document.querySelector('[data-input=x] textarea').value = text; }", ",".join(["0.5", "-0.25"] * 64))
    browser.run("text => { document.querySelector('[data-input=rate] input').value = text; }", "0.05")
    click(browser, "#train")
    until(browser, "document.getElementById('training').textContent.includes('step 60')")
    first, last = browser.evaluate(
        "(() => { const all = document.getElementById('curve').getAttribute('aria-label'); return [1, parseFloat(all.split(' ')[1])]; })()"
    )
    assert last < 0.5 * first
    click(browser, "#train")
    until(browser, "document.getElementById('train').textContent === 'Train'")
    assert exceptions(browser) == []


def test_the_digits_page_learns_without_webgpu(tmp_path: Path) -> None:
    web_digits.main(["--out", str(tmp_path)])
    with Chromium("--disable-features=WebGPU", "--disable-gpu") as browser:
        browser.call("Page.addScriptToEvaluateOnNewDocument", source="Object.defineProperty(navigator, 'gpu', {value: undefined})")
        opened(browser, tmp_path / "digits.html")
        assert "Runs on the CPU, without WebGPU" in text(browser, "status")
        click(browser, "#train")
        until(browser, "parseFloat(document.getElementById('unseen').textContent) >= 97")
        click(browser, "#train")
        download(browser, tmp_path)
        click(browser, "#reset")
        until(browser, "document.getElementById('training').textContent === ''")
        assert browser.evaluate("app.run('evaluate', {}, ['accuracy']).then(({accuracy}) => accuracy[0])") < 0.5
        assert exceptions(browser) == []


def test_a_page_without_webgpu_says_so(tmp_path: Path) -> None:
    plain_page(tmp_path / "plain.html")
    with Chromium("--disable-features=WebGPU", "--disable-gpu") as browser:
        browser.call("Page.addScriptToEvaluateOnNewDocument", source="Object.defineProperty(navigator, 'gpu', {value: undefined})")
        browser.open(tmp_path / "plain.html")
        browser.evaluate(READY)
        assert "This browser has no WebGPU." in text(browser, "failure")
        assert browser.evaluate("document.documentElement.dataset.ready") == "failed"
