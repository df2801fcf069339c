"""Write docs/api.md, the table of names: `python tools/api_table.py`.

What a row says follows from the call of that name in tests/catalogue, which the tests check.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_origin

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import volta_fn as vf  # noqa: E402
from tests.catalogue.call import Call  # noqa: E402
from tests.catalogue.calls import CALLS  # noqa: E402
from tests.catalogue.laws import ours, traced  # noqa: E402
from tests.catalogue.names import LEFT_OUT, NAMESPACES, exists, public_names, resolve  # noqa: E402
from volta_fn.compiler.pipeline import lower  # noqa: E402
from volta_fn.compiler.target import TargetCapabilities  # noqa: E402
from volta_fn.numpy.scalar_types import ScalarType  # noqa: E402
from volta_fn.targets.cpu.target import TARGET as CPU  # noqa: E402
from volta_fn.targets.wgsl.target import WgslTarget  # noqa: E402

TARGETS = {"CPU": CPU, "GPU": WgslTarget(TargetCapabilities(float16=True, fma=True, subgroups=True))}

_HEAD = """# Names of JAX and Optax

`python tools/api_table.py` writes this page; `tests/catalogue` has a call for each function of arrays, whose values are compared with those
of NumPy, SciPy, JAX or Optax, traced and eager, batched with a loop, and whose derivatives are compared with differences. Of an optimizer,
that is the first update, as a function of parameters and gradients.

- *differentiable*: derivatives by its floating-point arguments exist; "–": they do not, or its results are integers or constant between
  jumps.
- *jitted*, *batched*: it can be traced; "–": it makes an array from Python numbers, or its result's shape depends on values.
- *device*: where all of it runs compiled; steps that run in NumPy on the host are named.
"""


def device_of(path: str, call: Call) -> str:
    """Return the targets that generate all of a call's code, or what runs on the host."""
    run, arrays = traced(ours(path, call), call)
    program = vf.make_jaxpr(run)(*[vf.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays])
    host = {name: sorted({step.primitive for step in lower(program, target).host_steps()}) for name, target in TARGETS.items()}
    if len({*map(tuple, host.values())}) == 1 and not host["CPU"]:
        return "all"
    return "; ".join(f"{name}: {', '.join(steps) + ' on the host' if steps else 'all'}" for name, steps in host.items())


def kind_of(value: Any) -> str:
    """Return what an object without a call is."""
    if isinstance(value, ScalarType):
        return "dtype"
    if isinstance(value, type) or get_origin(value) is not None:
        return "type"
    return "function" if callable(value) else "constant"


def row_of(path: str) -> tuple[str, ...]:
    """Return a name's row: supported, differentiable, batched, jitted, device, notes."""
    if path in LEFT_OUT:
        return ("no", "", "", "", "", LEFT_OUT[path])
    if not exists("volta_fn", path):
        return ("no", "", "", "", "", "not yet")
    if path not in CALLS:
        return ("yes", "", "", "", "", kind_of(resolve("volta_fn", path)))
    call = CALLS[path]
    traces = "yes" if call.jit else "–"
    return ("yes", "yes" if call.grad and call.jit else "–", traces, traces, device_of(path, call) if call.jit else "host", call.note)


def sections() -> Iterator[str]:
    """Yield the table of each namespace, preceded by how much of it there is."""
    for namespace in NAMESPACES:
        rows = {name: row_of(f"{namespace.ours}.{name}") for name in public_names(namespace)}
        have = sum(row[0] == "yes" for row in rows.values())
        yield f"## {namespace.title}\n\n{have} of {len(rows)} names.\n"
        yield "| name | supported | differentiable | batched | jitted | device | notes |\n| --- | --- | --- | --- | --- | --- | --- |"
        yield "\n".join(f"| {name} | {' | '.join(row)} |" for name, row in rows.items()) + "\n"


def text() -> str:
    """Return the page."""
    return "\n".join([_HEAD, *sections()])


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page."""
    argparse.ArgumentParser(prog="python tools/api_table.py", description=(__doc__ or "").splitlines()[0]).parse_args(arguments)
    (ROOT / "docs" / "api.md").write_text(text())


if __name__ == "__main__":
    main()
