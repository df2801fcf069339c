"""What notebooks show of arrays, models, programs and summaries."""

from __future__ import annotations

import html.parser
from fractions import Fraction

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import lax, nn, optim
from volta_fn.core.arrays.html import sparkline, statistics


class Balance(html.parser.HTMLParser):
    """Counts tags that are open, and keeps the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def shown(value: object) -> str:
    """Return the text of an object's HTML, whose tags match."""
    parser = Balance()
    parser.feed(value._repr_html_())
    assert not parser.open
    return parser.text


def test_arrays_show_range_nan_count_and_sparkline() -> None:
    text = shown(jnp.array([0.0, np.nan, 1.0, np.inf, 1.0]))
    assert text.startswith("Array f32[5]  0 … 1, mean 0.6667, 1 NaN, 1 infinite ▅▁▁▁▁▁▁▁▁▁▁▁▁▁▁█")
    assert "nan" in text


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32", "float16", "bfloat16", "complex64", "float32"])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_every_dtype_and_shape_is_shown(dtype: str, shape: tuple[int, ...]) -> None:
    array = jnp.ones(shape, dtype)
    assert repr(array) in shown(array)


def test_statistics_of_equal_elements() -> None:
    assert statistics(np.ones((2, 3))) == "all 1"
    assert statistics(np.array(120)) == "120"
    assert statistics(np.array([True, True])) == "all 1"


def test_statistics_of_nothing_finite() -> None:
    assert statistics(np.array([np.nan])) == "1 NaN"
    assert statistics(np.zeros(0)) == sparkline(np.zeros(0)) == ""


EXTREMES = {
    "range": np.array([-1.7e308, 1.7e308]),
    "sum": np.full(3, 1.7e308) * [1, 1, 0.5],
    "neighbours": np.array([1.0, 1.0 + 2.0**-52]),
    "subnormal": np.array([0.0, 5e-324]),
    "subnormal neighbours": np.array([5e-324, 1e-323]),
    "large neighbours": np.array([1e300, np.nextafter(1e300, np.inf)]),
    "float32": np.array([-3.4e38, 3.4e38], np.float32),
    "int64": np.array([-(2**63), 2**63 - 1]),
    "uint64": np.array([0, 2**64 - 1], np.uint64),
    "with others": np.array([-1.7e308, np.nan, 1.7e308, np.inf]),
}


@pytest.mark.parametrize("values", EXTREMES.values(), ids=EXTREMES)
def test_extreme_numbers_are_shown(values: np.ndarray) -> None:
    finite = values[np.isfinite(values.astype(np.float64))]
    assert (bars := sparkline(finite))[0] != "▁" != bars[-1]
    assert set(bars[1:-1]) <= {"▁", bars[0], bars[-1]}
    array = jnp.asarray(values)
    assert bars in shown(array)
    assert bars in repr(vf.debug.view({"w": array}))
    mean = float(sum(Fraction(float(x)) for x in finite) / finite.size)
    assert f"mean {mean:.4g}" in statistics(values)


def test_a_histogram_has_the_bins_of_numpy() -> None:
    values = np.random.default_rng(0).normal(size=1000)
    counts = np.histogram(values, 16)[0]
    assert sparkline(values) == "".join("▁▂▃▄▅▆▇█"[int(np.ceil(n / counts.max() * 7))] for n in counts)


def test_models_unfold() -> None:
    first, second = vf.random.split(vf.random.key(0))
    model = nn.Sequential(a=nn.Linear.init(first, 2, 3), act=nn.Lambda(lambda x: x), b=nn.MLP.init(second, 3, 1, 4, 1))
    text = shown(model)
    assert text.startswith("Sequential  # 30 parameters")
    assert "a: Linear  # 9 parameters" in text
    assert "layers: tuple" in text
    assert "<lambda>" in text
    assert model._repr_html_().count("<details>") > 8


def test_programs_and_summaries_are_shown() -> None:
    program = vf.make_jaxpr(lambda x: jnp.sin(x) < 1)(1.0)
    assert shown(program) == f"jaxpr of {len(program.jaxpr.eqns)} equations{program!r}\n"
    table = nn.summary(nn.Sequential(nn.Linear.init(vf.random.key(0), 2, 3)), jnp.ones((4, 2)))
    assert "Linear" in shown(table) and "f32[4,3]" in shown(table)


def test_deleted_arrays_say_so() -> None:
    array = jnp.ones(2) + 1
    array.delete()
    assert "deleted" in shown(array)


def test_programs_inside_programs_unfold() -> None:
    def double_twice(x):
        looped = lax.while_loop(lambda c: c.sum() < 3, lambda c: 2 * c, x)
        return lax.cond(x.sum() > 0, lambda x: 2 * lax.scan(lambda c, y: (c + y, c), x, looped)[0], lambda x: x, x[0])

    program = vf.make_jaxpr(double_twice)(jnp.ones(3))
    words = shown(program).replace("…", "").split()
    assert words == f"jaxpr of {len(program.jaxpr.eqns)} equations{program!r}".split()
    assert program._repr_html_().count("<details open>") == 1 + repr(program).count(" let\n") - 1


def test_trees_unfold_and_have_a_line_for_each_leaf() -> None:
    model = nn.MLP.init(vf.random.key(0), 2, 1, 4, 1)
    state = {"model": model, "moments": optim.adam(1e-3).init(model), "step": 3, "data": np.ones(2), "key": vf.random.key(0)}
    view = vf.debug.view(state)
    text = shown(view)
    assert "model: MLP  # 17 parameters" in text and "mu: MLP" in text and "moments: tuple" in text
    lines = repr(view).splitlines()
    assert len(lines) == len(vf.tree.leaves(state))
    (line,) = [line for line in lines if line.startswith("['model'].layers[0].weight")]
    assert "f32[2,4]" in line and "mean" in line
    assert repr(vf.debug.view(jnp.array([1.0, np.nan]))).startswith("the tree  f32[2]  1 … 1, mean 1, 1 NaN")
    assert repr(vf.debug.view({})) == ""
    vf.jit(lambda x: repr(vf.debug.view({"x": x})))  # traced arrays have no elements
