"""Compare the code cells of JAX's documentation under JAX and under volta_fn.

    python tools/jax_documents.py CHECKOUT [DOCUMENT ...] [--show] [--keep FOLDER]

CHECKOUT is a clone of https://github.com/jax-ml/jax; each DOCUMENT is a path below its docs/ (without any: all but those of Pallas and of
JAX's internals). A document's cells run in one process under real JAX, and in another one under `volta_fn.jax`. A cell is the *same* if
both raise, or if the names that it binds and its last value agree: types, shapes, dtypes and numbers. Cells in which only JAX raises, or
that take longer than 30 seconds there, do not count. With --keep, what JAX gave is kept in that folder, and used from then on.
"""

from __future__ import annotations

import argparse
import ast
import collections
import contextlib
import functools
import importlib
import io
import itertools
import json
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
_BEGIN = re.compile(r"^(?P<indent>\s*)(?:```+\s*(?:\{code-cell\}|python|py\b|\{testcode\})|\.\. (?:code-block:: python|testcode::))")
_SKIPPED = ("pallas/", "internals/", "new_docs/", "_static/", "_tutorials/")
_PRELUDE = "import numpy as np\nimport jax\nimport jax.numpy as jnp\nfrom jax import lax, random, grad, jit, vmap\n"
LIMIT = 30.0


def cells(document: str) -> Iterator[str]:
    """Yield the code cells of a document, each doctest by itself."""
    rest = iter(document.split("\n"))
    for first in rest:
        if begin := _BEGIN.match(first):
            inside = _is_fenced if "```" in first else functools.partial(_is_indented, len(begin["indent"]))
            yield from _code("\n".join(itertools.takewhile(inside, rest)))
        elif first.lstrip().startswith(">>> "):
            yield from _code("\n".join([first, *itertools.takewhile(str.strip, rest)]))


def _is_fenced(text: str) -> bool:
    return not text.strip().startswith("```")


def _is_indented(indent: int, text: str) -> bool:
    return not text.strip() or len(text) - len(text.lstrip()) > indent


def _code(body: str) -> Iterator[str]:
    source = re.sub(r"\A(\s*:\S+:.*\n|\s*\n|---\n(.*\n)*?---\n)*", "", textwrap.dedent(body) + "\n")
    if ">>> " not in source:
        if source.strip():
            yield source
        return
    for example in re.findall(r"(?m)^\s*>>> .*(?:\n\s*\.\.\. ?.*)*", source):
        yield re.sub(r"(?m)^\s*(>>>|\.\.\.) ?", "", example)


class TooLong(BaseException):
    """A cell took longer than its limit."""


def run_cells(path: Path) -> list[dict[str, Any]]:
    """Run a document's cells, and describe what each binds and returns."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(_PRELUDE, names)
    np.random.seed(0)  # so that documents that draw numbers get the same ones
    return [run_cell(source, names) for source in cells(path.read_text())]


def run_cell(source: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run one cell within the limit."""

    def stop(*_: Any) -> None:
        raise TooLong

    before = {name: id(value) for name, value in names.items()}
    plain = re.sub(r"(?m)^(\s*)(?:!|%(?!time)).*$", r"\1pass", re.sub(r"(?m)^%(time|timeit)\s*(-\S+\s+\S+\s+)*", "", source))
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, LIMIT)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            value = _value(ast.parse(plain), names)
            bound = {n: describe(v) for n, v in names.items() if before.get(n) != id(v) and not n.startswith("__")}
    except TooLong:
        return {"source": source, "outcome": "slow"}
    except SyntaxError:
        return {"source": source, "outcome": "no program"}
    except BaseException as error:
        return {"source": source, "outcome": "raises", "error": f"{type(error).__name__}: {str(error)[:300]}"}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return {"source": source, "outcome": "runs", "found": {**bound, "(value)": describe(value)}}


def _value(tree: ast.Module, names: dict[str, Any]) -> Any:
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), names)
    return eval(compile(ast.Expression(last.value), "<cell>", "eval"), names) if last is not None else None  # type: ignore[attr-defined]


def describe(value: Any, depth: int = 0) -> Any:
    """Return what is compared of a value, as JSON; None for what is not."""
    import jax  # noqa: PLC0415  # which must be installed first

    if isinstance(value, (bool, int, float)):
        return [type(value).__name__, [], [float(value)]]
    if isinstance(value, (np.ndarray, np.generic, jax.Array)) and not isinstance(value, jax.core.Tracer):
        return _array(value, jax)
    if isinstance(value, dict) and depth < 4:
        return {str(k): describe(v, depth + 1) for k, v in list(value.items())[:50]}
    if isinstance(value, (list, tuple)) and depth < 4:
        return {str(i): describe(v, depth + 1) for i, v in enumerate(value[:50])}
    return None


def _array(value: Any, jax: Any) -> Any:
    try:
        dtype = str(value.dtype)
        host = np.asarray(jax.random.key_data(value) if dtype.startswith("key<") else value)
    except RuntimeError:  # of a deleted array
        return [RuntimeError.__name__, [], []]
    except Exception as error:
        return [type(error).__name__, [], []]
    if host.dtype.names or host.dtype == object:
        return [dtype, list(host.shape), []]
    some = host.ravel()[:: max(1, host.size // 300)].astype(complex if host.dtype.kind == "c" else float)
    return [dtype, list(host.shape), [*some.real.tolist(), *(some.imag.tolist() if host.dtype.kind == "c" else ())]]


def agree(a: Any, b: Any) -> bool:
    """Return True if two descriptions agree."""
    if a is None or b is None:
        return True
    if isinstance(a, dict) or isinstance(b, dict):
        return isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys() and all(agree(a[k], b[k]) for k in a)
    if a[:2] != b[:2] or len(a[2]) != len(b[2]):
        return False
    x, y = np.array(a[2], float), np.array(b[2], float)
    scale = np.abs(x[np.isfinite(x)]).max(initial=0.0)
    tolerance = 2e-2 if "16" in a[0] else 2e-3
    return np.allclose(x, y, rtol=tolerance, atol=tolerance * max(scale * 1e-2, 1e-6), equal_nan=True)


def compare(theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    """Return how a cell went under volta_fn, given how it went under JAX."""
    if theirs["outcome"] in ("slow", "no program"):
        return "not counted"
    if theirs["outcome"] == "raises":
        return "same" if ours["outcome"] == "raises" else "not counted"
    if ours["outcome"] != "runs":
        return ours["outcome"]
    seen = {name: value for name, value in theirs["found"].items() if value is not None}
    return "same" if all(n in ours["found"] and agree(d, ours["found"][n]) for n, d in seen.items()) else "differs"


def run_document(checkout: Path, document: str, library: str) -> list[dict[str, Any]]:
    """Run a document in another process."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [sys.executable, __file__, str(checkout), document, "--under", library, "--out", str(out)]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, check=False, cwd=folder, timeout=600, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return json.loads(out.read_text()) if out.exists() else []


def run_jax(checkout: Path, document: str, keep: Path | None) -> list[dict[str, Any]]:
    """Run a document under JAX, or read what it gave before."""
    if keep is None:
        return run_document(checkout, document, "jax")
    retained = keep / f"{document.replace('/', '+')}.json"
    if not retained.exists():
        keep.mkdir(parents=True, exist_ok=True)
        retained.write_text(json.dumps(run_document(checkout, document, "jax")))
    rows: list[dict[str, Any]] = json.loads(retained.read_text())
    return rows


def documents(checkout: Path) -> list[str]:
    """Return all documents with code."""
    folder = checkout / "docs"
    result = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.suffix in (".md", ".rst"))
    return [d for d in result if not d.startswith(_SKIPPED) and next(cells((folder / d).read_text()), None)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("documents", nargs="*")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--under", choices=["jax", "volta_fn"], help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.under:
        if options.under == "volta_fn":
            sys.path.insert(0, str(HERE.parent))
            importlib.import_module("volta_fn.jax").install()
        options.out.write_text(json.dumps(run_cells(options.checkout / "docs" / options.documents[0])))
        return
    total: collections.Counter[str] = collections.Counter()
    for document in options.documents or documents(options.checkout):
        theirs, ours = run_jax(options.checkout, document, options.keep), run_document(options.checkout, document, "volta_fn")
        ours += [{"outcome": "missing"}] * (len(theirs) - len(ours))
        outcomes = [compare(*pair) for pair in zip(theirs, ours, strict=True)]
        total.update(outcomes)
        print(f"{document:50} {dict(collections.Counter(outcomes))}", flush=True)
        for outcome, cell in zip(outcomes, ours, strict=True) if options.show else ():
            if outcome not in ("same", "not counted"):
                print(f"  {outcome}: {cell.get('error', '')}\n{textwrap.indent(cell.get('source', ''), '    ')}")
    counted = sum(total.values()) - total["not counted"]
    print(f"{total['same']} of {counted} cells: {100 * total['same'] / max(counted, 1):.1f} %")


if __name__ == "__main__":
    main()
