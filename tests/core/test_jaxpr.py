"""Programs as data: pickled and read by other processes, with the lines that they come from."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import lax
from volta_fn.extend.core import jaxpr_as_fun

jnp = vf.numpy
X = np.float32([0.5, -1.0, 2.0])

PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "elementwise": lambda x: jnp.sin(x) * 2,
    "constants": lambda x: x + np.float32([1.0, 2.0, 3.0]),
    "scan": lambda x: lax.scan(lambda c, y: (c * y, c), 1.0, x),
    "cond": lambda x: lax.cond(x[0] > 0, jnp.sin, jnp.cos, x),
    "while": lambda x: lax.while_loop(lambda c: c[0] < 9, lambda c: c * 2, x),
    "jit": vf.jit(jnp.tanh),
    "gradient": vf.grad(lambda x: jnp.sum(jnp.tanh(x) @ jnp.ones((3, 2)))),
    "checkpoint": vf.grad(vf.checkpoint(lambda x: jnp.sum(jnp.sin(x)))),
    "random": lambda x: x + vf.random.normal(vf.random.key(0), (3,)),
    "linear algebra": lambda x: jnp.linalg.inv(jnp.diag(x)),
    "named block": vf.named_scope("block")(lambda x: x + 1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_pickled_programs_are_equal_and_run(name: str) -> None:
    program = vf.make_jaxpr(PROGRAMS[name])(X)
    again = pickle.loads(pickle.dumps(program))
    assert again.pretty_print(source_info=True) == program.pretty_print(source_info=True)
    for actual, wanted in zip(*(vf.jit(jaxpr_as_fun(p))(X) for p in (again, program)), strict=True):
        np.testing.assert_array_equal(actual, wanted)


def test_another_process_reads_them() -> None:
    program = "import pickle, sys; print(pickle.load(sys.stdin.buffer).pretty_print(source_info=True))"
    for name in ("random", "linear algebra"):
        closed = vf.make_jaxpr(PROGRAMS[name])(X)
        result = subprocess.run([sys.executable, "-c", program], input=pickle.dumps(closed), capture_output=True, check=True)
        assert result.stdout.decode().strip() == closed.pretty_print(source_info=True)
        assert "test_jaxpr.py" in result.stdout.decode()
