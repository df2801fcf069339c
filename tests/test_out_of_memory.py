"""Arrays that no memory holds end in typed errors with the line of the user."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn.errors import OutOfMemoryError, ShapeError

#: More bytes of float32 than a process can address (2^50), whatever the system promises; and more than words count (2^65).
LARGE, IMPOSSIBLE = (2**25, 2**23), (2**40, 2**23)

ROW, COLUMN = np.ones((1, LARGE[1]), np.float32), np.ones((LARGE[0], 1), np.float32)

RESULTS: dict[str, Callable[[vf.Array, vf.Array], vf.Array]] = {
    "elementwise": lambda x, y: x + y,
    "product": lambda x, y: x @ y,
    "iota": lambda x, y: jnp.arange(2**48),
    "random": lambda x, y: vf.random.normal(vf.random.key(0), LARGE),
    "concatenate": lambda x, y: jnp.concatenate([jnp.broadcast_to(y, LARGE)] * 2),
}


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("wrap", [lambda f: f, vf.jit], ids=["eager", "jit"])
def test_a_result_without_room_is_named(name, wrap):
    with pytest.raises(OutOfMemoryError, match=r"memory|bytes") as caught:
        wrap(RESULTS[name])(jnp.asarray(COLUMN), jnp.asarray(ROW))
    assert caught.value.location is not None
    assert caught.value.location.file == __file__
    assert wrap(RESULTS["elementwise"])(jnp.ones(2), jnp.ones(2)).tolist() == [2.0, 2.0]


def test_the_numpy_target_says_the_same():
    program = f"""
import volta_fn as vf, volta_fn.numpy as jnp
x, y = jnp.ones(({LARGE[0]}, 1)), jnp.ones((1, {LARGE[1]}))
for add in (lambda x, y: x + y, vf.jit(lambda x, y: x + y)):
    try:
        add(x, y)
    except vf.errors.OutOfMemoryError as error:
        print(error.message)
"""
    environment = {**os.environ, "VOLTA_NATIVE": "0"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.count(f"shape ({LARGE[0]}, {LARGE[1]}) and data type float32; use smaller batches") == 2


@pytest.mark.parametrize("wrap", [lambda f: f, vf.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("shape", [IMPOSSIBLE, (2**62,), (2**70,), (0, *IMPOSSIBLE, 2**20)])
def test_more_bytes_than_words_count(wrap, shape):
    with pytest.raises(OutOfMemoryError, match="would have more than .* bytes; compute it in parts"):
        wrap(lambda: jnp.broadcast_to(jnp.float32(1), shape))()


@pytest.mark.parametrize("wrap", [lambda f: f, vf.jit], ids=["eager", "jit"])
def test_more_axes_than_arrays_have(wrap):
    most = jnp.ones((1,) * 64)
    assert wrap(lambda x: x + 1)(most).shape == (1,) * 64
    for deeper in (lambda x: x[None], lambda x: x.reshape((1,) * 65), lambda x: jnp.zeros((1,) * 65), lambda x: jnp.stack([x, x])):
        with pytest.raises(ShapeError, match="at most 64 axes, but this would have 65"):
            wrap(deeper)(most)


def test_products_of_any_size_compile_at_once():
    shapes = [vf.ShapeDtypeStruct(shape, np.float32) for shape in (COLUMN.shape, ROW.shape)]
    assert vf.jit(lambda x, y: x @ y).lower(*shapes).memory().results == 2**50
