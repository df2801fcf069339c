"""The tool that compares programs under JAX and under volta_fn: what it counts as the same."""

from __future__ import annotations

import sys
import urllib.request

import numpy as np
import pytest

from tests.test_layers import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import jax_programs as tool


def outcome(text: str = "", status: int | None = 0, **arrays: list[float]) -> tool.Outcome:
    return tool.Outcome(status, text, "ValueError: bad\nhint", 1.0, arrays=arrays)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("loss 0.1234", "loss 0.1235"),  # a unit of the last digit
        ("[1000.0 1e-9]", "[1000.0 2e-5]"),  # beside a large number
        ("nan inf -inf 1e3", "nan inf -inf 1000.0"),
        ("x 1.0\nTime: 3.2\n12.1 ms", "x 1.0\nTime: 9.9\n15.3 ms"),
        ("x 1.0\n<object at 0x7f33aa1010>", "x 1.0\n<object at 0x7f33aa2222>"),
        ("{'b': 2.0, 'a': 1.0}", "{'a': 1.0, 'b': 2.0}"),
        ("{'b': 2.0,\n 'a': 1.0}\n3.0", "{'a': 1.0,\n 'b': 2.0}\n3.0"),
        ("1.0 float32", "1.0 f32"),
    ],
)
def test_the_same(theirs, ours):
    assert tool.compare(outcome(theirs), outcome(ours)).startswith("same")


@pytest.mark.parametrize(
    ("theirs", "ours", "answer"),
    [
        (outcome("1.00 2.00"), outcome("1.00 2.05"), "differs: 1 of 2 numbers, such as 2.05 for 2.0"),
        (outcome("1 2"), outcome("1 2 3"), "differs: 3 numbers, JAX's 2"),
        (outcome("17"), outcome("18"), "differs"),
        (outcome("1.0"), outcome("nan"), "differs"),
        (outcome(w=[1.0, 2.0]), outcome(w=[1.0, 2.1]), "differs: the array w"),
        (outcome(w=[1.0, 2.0]), outcome(), "differs: the array w"),
        (outcome("1"), outcome("1", 1), "an error: ['ValueError: bad']"),
        (outcome("1", 1), outcome("1"), "not counted: an error under JAX"),
        (outcome("1", None), outcome("1"), "not counted: too long"),
        (outcome("Time: 3"), outcome("Time: 4"), "not counted: nothing"),
        (outcome("1"), outcome("1", None), "too long"),
    ],
)
def test_other_outcomes(theirs, ours, answer):
    assert tool.compare(theirs, ours).startswith(answer)


def test_one_draw_of_a_hundred_may_differ():
    name, draws = "x (booleans)", [0.0] * 100
    assert tool.compare(outcome(**{name: draws}), outcome(**{name: [1.0, *draws[1:]]})).startswith("same")
    assert tool.compare(outcome(**{name: draws}), outcome(**{name: [1.0, 1.0, *draws[2:]]})).startswith("differs")


def test_programs_are_read_with_arguments_and_notes(tmp_path):
    (tmp_path / "programs.txt").write_text("'a b.py' --n 3 # fewer steps\n\n# nothing\nc.py\n")
    assert tool.read_programs(tmp_path) == [tool.Program("a b.py", ["--n", "3"], "fewer steps"), tool.Program("c.py")]


def test_a_program_runs_under_volta_fn_and_is_timed(tmp_path):
    (tmp_path / "p.py").write_text(
        "import jax, jax.numpy as jnp, numpy as np, sys\nf = jax.jit(lambda x: x + 1)\ny = f(jnp.arange(3.0))\n"
        "g = jax.grad(lambda x: f(x) * x)(2.0)\n"
        "print(y, g, sys.argv[1], np.random.rand())\n"
    )
    result = tool.run(tmp_path, tool.Program("p.py", ["7"]), "volta_fn", timed=True)
    np.random.seed(0)
    assert [value for value, _ in result.numbers()] == pytest.approx([1, 2, 3, 5, 7, np.random.rand()])
    assert result.arrays == {"y": [1.0, 2.0, 3.0], "g": [5.0]}
    ((calls, first, *others),) = result.functions.values()
    assert calls == 1
    assert len(others) == tool.REPEATS
    assert tool.summary(result.functions) == (sorted(others)[2], first)


def test_downloads_are_read_from_files(tmp_path):
    address = "https://nowhere.invalid/model?raw=true"
    (tmp_path / "https%3A%2F%2Fnowhere.invalid%2Fmodel%3Fraw%3Dtrue").write_bytes(b"bytes")
    opener = urllib.request.build_opener(tool.Downloads(tmp_path))
    with opener.open(address) as answer:
        assert answer.read() == b"bytes"
    assert tool.Downloads(tmp_path).default_open(urllib.request.Request("https://nowhere.invalid/other")) is None
