"""Open reports of `explain` in headless Chromium: no error on the console, no request, and small files.

    python -m tests.inspection.check_reports [--device cpu|gpu] [--only REGEX] [--out DIR]

Makes the report of each training step of the benchmarks, opens it, chooses its kernels and unfolds its stages. Prints a row for each, with
the report's size (at most 2 MB), and leaves report and screenshots in the folder. Exits with 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import volta_fn as vf
from tests.inspection.check_steps import STEPS, step_of
from tests.web.chromium import Chromium
from volta_fn.inspection.explanation import Explanation

#: Bytes of a report, at most.
MOST = 2_000_000


class Seen(NamedTuple):
    """What happened in the browser."""

    #: Messages on the console that are errors or warnings, and exceptions.
    errors: list[str]
    #: Requests for anything but the page and what it holds itself.
    requests: list[str]
    #: Rows of the table, and characters of the texts that were unpacked.
    rows: int
    characters: int


def look(report: Path, pictures: Path | None = None) -> Seen:
    """Open a report, choose each of its first kernels, and unfold everything."""
    with Chromium(size=(1400, 1000)) as browser:
        browser.call("Log.enable")
        browser.call("Network.enable")
        browser.open(report)
        if pictures is not None:
            browser.screenshot(pictures.with_suffix(".png"))
        rows = browser.evaluate("document.querySelectorAll('#steps tbody tr').length")
        for number in range(min(rows, 20)):
            browser.evaluate(f"document.querySelectorAll('#steps tbody tr')[{number}].click()")
            browser.evaluate("new Promise(done => setTimeout(done, 20))")
        browser.evaluate("document.querySelectorAll('th').forEach(th => th.click())")
        browser.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        texts = "[...document.querySelectorAll('.pane, pre')].map(e => e.textContent.length)"
        whole = (
            f"new Promise((done, failed) => {{ let n = 0; const look = () => {texts}.every(x => x) ? done({texts}.reduce((a, b) => a + b))"
        )
        characters = browser.evaluate(
            f"{whole} : n++ < 200 ? setTimeout(look, 25) : failed(new Error('an empty pane: ' + {texts})); look() }})"
        )
        if pictures is not None:
            browser.evaluate("document.querySelector('section:nth-of-type(2)').scrollIntoView()")
            browser.screenshot(pictures.with_name(f"{pictures.stem}_charts.png"))
        events = browser.events
    problems = [str(e["params"]) for e in events if e.get("method") == "Runtime.exceptionThrown"]
    problems += [
        str(e["params"]) for e in events if e.get("method") == "Runtime.consoleAPICalled" and e["params"]["type"] in ("error", "warning")
    ]
    problems += [
        str(e["params"]) for e in events if e.get("method") == "Log.entryAdded" and e["params"]["entry"]["level"] in ("error", "warning")
    ]
    asked = [e["params"]["request"]["url"] for e in events if e.get("method") == "Network.requestWillBeSent"]
    report_url = report.resolve().as_uri()
    return Seen(problems, [url[:200] for url in asked if url != report_url and not url.startswith(("data:", "blob:"))], rows, characters)


def check(name: str, result: Explanation, folder: Path) -> bool:
    """Look at the report of a step; print a row, and return whether all is well."""
    stem = folder / name.replace("/", "_")
    report = result.html(stem.with_suffix(".html"))
    size, seen = report.stat().st_size, look(report, stem)
    met = not seen.errors and not seen.requests and size <= MOST and seen.rows == len(result.steps)
    counts = f"{len(seen.errors)} errors, {len(seen.requests)} requests, {seen.characters:,} characters shown"
    print(f"{name:12s} {size:>9,} bytes, {seen.rows:4d} kernels, {counts}; {'met' if met else 'MISSED'}", flush=True)
    for problem in (*seen.errors, *seen.requests):
        print(f"  {problem}")
    return met


def main() -> int:
    """Look at the reports; return 1 if one misses."""
    parser = argparse.ArgumentParser(description="Reports of explain in headless Chromium.")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--only", default="", help="a regular expression of the steps' names")
    parser.add_argument("--out", type=Path, help="the folder for reports and screenshots")
    options = parser.parse_args()
    folder = options.out or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    met = True
    with vf.default_device(vf.devices(options.device)[0]):
        for name in STEPS:
            if re.search(options.only, name):
                step, args = step_of(name, quick=False)
                met &= check(name, vf.explain(step, calls=1)(*args), folder)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
