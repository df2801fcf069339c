"""Explanations: every kernel once with its line, times that add up, the memory's peak, the report."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llvmlite")

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn import errors, lax, nn
from volta_fn.compiler import pipeline
from volta_fn.compiler.ir.kernel import KernelCall
from volta_fn.inspection.explanation import changes_of
from volta_fn.targets.cpu.target import TARGET


@pytest.fixture(autouse=True)
def _native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vf.devices("cpu")[0].backend, "native", True)


def loss(w: Any, x: Any) -> Any:
    hidden = vnp.tanh(x @ w)
    return (hidden * hidden).mean()


def step(w: Any, x: Any) -> Any:
    return w - 0.1 * vf.grad(loss)(w, x)


def recurrent(w: Any, xs: Any) -> Any:
    def cell(h: Any, x: Any) -> Any:
        h = vnp.tanh(h @ w + x)
        return h, h.sum()

    return lax.scan(cell, vnp.zeros((8, 16)), xs)


W, X = vnp.ones((16, 16)), vnp.ones((64, 16))


@pytest.mark.parametrize(("function", "args"), [(step, (W, X)), (recurrent, (W, vnp.ones((20, 8, 16)))), (nn.softmax, (X,))])
def test_every_kernel_once_with_a_line_and_times_that_add_up(function: Any, args: Any) -> None:
    result = vf.explain(function)(*args)
    program = pipeline.lower(vf.jit(function).lower(*args).jaxpr, TARGET)

    def count(program: Any) -> int:
        return sum(item.is_needed + sum(map(count, item.programs)) for item in program.items)

    assert len(result.steps) == count(program)
    assert [s.number for s in result.steps] == [*range(1, len(result.steps) + 1)]
    assert all(s.user_lines for s in result.steps)
    assert all(s.seconds is not None and s.seconds >= 0 for s in result.steps)
    user_files = {Path(at.file).name for s in result.steps for at in s.user_lines}
    assert user_files <= {"test_explain.py"}
    spans = sum(s.seconds or 0.0 for s in result.steps) + result.overhead
    assert result.kernel_seconds == pytest.approx(spans)


def test_kernels_in_loops_run_once_per_iteration() -> None:
    result = vf.explain(recurrent)(W, vnp.ones((20, 8, 16)))
    inner = [s for s in result.steps if s.depth]
    assert inner and all(s.runs == 20 for s in inner)
    assert [s.kind for s in result.steps if s.kind == "control flow"] == ["control flow"]


def test_operations_and_bytes_are_those_of_the_program() -> None:
    result = vf.explain(lambda w, x: x @ w)(W, X)
    (product,) = result.steps
    assert product.flops == 2 * 64 * 16 * 16
    assert product.bytes == 4 * (16 * 16 + 2 * 64 * 16)


def test_the_peak_is_that_of_the_compiled_program() -> None:
    result = vf.explain(step)(W, X)
    memory = vf.jit(step).lower(W, X).memory()
    assert result.memory.peak == memory.peak
    assert max(result.memory.temporaries) <= memory.temporaries
    assert max(result.memory.temporaries) >= 0.9 * memory.temporaries or memory.temporaries < 1 << 14


def test_passes_lead_from_the_traced_program_to_the_kernels() -> None:
    lowered = vf.jit(recurrent).lower(W, vnp.ones((20, 8, 16)))
    changes = changes_of(lowered.jaxpr, TARGET)
    for before, after in itertools.pairwise(changes):
        assert after.before <= before.after or after.name == before.name
    assert {"fusion", "dead code", "inline"} <= {change.name for change in changes}
    fused = pipeline.fused(lowered.jaxpr, TARGET)
    assert sum(isinstance(node, KernelCall) for node in fused.nodes) == sum(change.difference.get("kernel", 0) for change in changes)


def test_nothing_runs_without_arrays() -> None:
    shapes = vf.ShapeDtypeStruct((16, 16), "float32"), vf.ShapeDtypeStruct((64, 16), "float32")
    result = vf.explain(step, run=False)(*shapes)
    assert result.seconds is None and all(s.seconds is None for s in result.steps)
    with pytest.raises(errors.ArgumentTypeError, match="run=False"):
        vf.explain(step)(*shapes)
    with pytest.raises(errors.ArgumentError, match="at least 1"):
        vf.explain(step, calls=0)


def test_donated_arguments_stay_usable() -> None:
    w = vnp.ones((16, 16))
    vf.explain(vf.jit(step, donate_argnums=0))(w, X)
    assert float(w.sum()) == 256


def test_numpy_explains_its_equations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vf.devices("cpu")[0].backend, "native", False)
    result = vf.explain(step)(W, X)
    assert result.target == "numpy"
    assert len(result.steps) == len(vf.jit(step).lower(W, X).simplified.eqns)
    assert all(s.user_lines for s in result.steps) and result.seconds


def test_text_has_kernels_passes_and_memory() -> None:
    text = str(vf.explain(step)(W, X))
    assert "dot_general" in text and "fusion:" in text and "peak" in text and "test_explain.py:" in text


def test_the_report_needs_nothing_else(tmp_path: Path) -> None:
    result = vf.explain(step)(W, X)
    page = result.html(tmp_path / "report.html").read_text()
    assert not re.search(r"(src|href)=['\"](?!data:)", page)
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    data = re.search(r"id='data'[^>]*>([^<]+)<", page)
    assert data is not None
    unpacked = json.loads(gzip.decompress(base64.b64decode(data[1])))
    assert len(unpacked["steps"]) == len(result.steps)
    assert any("▶" in text and "tanh" in text for text in unpacked["texts"])
    assert "<table" in result._repr_html_()


class Block(vf.nn.Module):
    inner: vf.nn.Linear
    outer: vf.nn.Linear

    def __call__(self, x: Any) -> Any:
        return x + self.outer(vf.nn.relu(self.inner(x)))


class Net(vf.nn.Module):
    blocks: list[Block]

    def __call__(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return x


def make_net(count: int) -> Net:
    keys = vf.random.split(vf.random.key(0), 2 * count)
    return Net([Block(*[vf.nn.Linear.init(k, 64, 64) for k in keys[2 * i : 2 * i + 2]]) for i in range(count)])


def test_kernels_belong_to_layers_and_equal_layers_are_one_row() -> None:
    net = make_net(3)
    result = vf.explain(lambda net, x: net(x), run=False)(net, vnp.ones((32, 64)))
    layers = {step.layer for step in result.steps}
    assert layers >= {f"Net/blocks.{i}/{name}" for i in range(3) for name in ("inner", "outer")}
    costs = {cost.layer: cost for cost in result.layers()}
    assert costs["Net/blocks.0–2/inner"].copies == 3
    assert sum(cost.flops for cost in costs.values()) == sum(step.flops * step.runs for step in result.steps)
    assert "Net/blocks.0–2/inner  × 3" in str(result)


def test_backward_kernels_belong_to_the_layers_that_they_differentiate() -> None:
    result = vf.explain(vf.grad(lambda net, x: net(x).sum()), run=False)(make_net(2), vnp.ones((32, 64)))
    assert [step.name for step in result.steps if not step.layer and step.flops > 32 * 64 * 64] == []


def test_the_text_shows_the_slowest_kernels_first_and_sums_up_the_rest() -> None:
    result = vf.explain(lambda net, x: net(x), calls=1)(make_net(12), vnp.ones((8, 64)))
    text = str(result)
    rest = len(result.steps) - 20
    assert rest > 0 and f"… and {rest} more" in text
    rows = text.split("kernels, the most expensive first\n")[1].split("… and")[0].splitlines()[1:]
    assert [int(row.split()[0]) for row in rows if row.strip()] == [step.number for step in result.slowest(20)]


def test_charts_in_notebooks_need_no_style_sheet() -> None:
    fragment = vf.explain(lambda x: vnp.tanh(x @ x).sum(), calls=1)(vnp.ones((64, 64)))._repr_html_()
    shapes = re.findall(r"<(?:path|polyline|circle)[^>]*>", fragment)
    assert len(shapes) > 3
    assert all(" fill=" in shape or " stroke=" in shape for shape in shapes)
    assert "fill='currentColor'" in fragment and "<style" not in fragment


def test_scopes_of_layers_do_not_change_programs() -> None:
    net, x = make_net(2), vnp.ones((4, 64))
    plain = vf.make_jaxpr(lambda net, x: net(x))(net, x)
    with vf.named_scope("other"):
        other = vf.make_jaxpr(lambda net, x: net(x))(net, x)
    assert str(plain) == str(other)
    assert {eqn.source.scope for eqn in other.eqns if eqn.source is not None} == {
        f"other/{eqn.source.scope}" for eqn in plain.eqns if eqn.source is not None
    }


@pytest.mark.parametrize("name", ["grad", "vmap", "vmap_of_vmap", "grad_of_grad", "jvp"])
def test_equations_of_a_backward_pass_have_the_lines_of_the_function(name: str) -> None:
    def squares(x: vf.Array) -> vf.Array:
        return vnp.sum(vnp.tanh(x) ** 2)

    gradient = vf.grad(squares)
    transformed = {
        "grad": gradient,
        "vmap": vf.vmap(gradient),
        "vmap_of_vmap": vf.vmap(vf.vmap(gradient)),
        "grad_of_grad": vf.grad(lambda x: gradient(x).sum()),
        "jvp": lambda x: vf.jvp(gradient, (x,), (x,)),
    }[name]
    program = vf.make_jaxpr(transformed)(vnp.ones((2, 3, 4)))
    lines = [str(eqn.source) for eqn in program.eqns if eqn.primitive.name == "mul"]
    assert lines and all("squares" in line for line in lines)
