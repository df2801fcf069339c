"""Programs as WebAssembly give what the same programs give in Python: control flow, state in place, integers, 16-bit floats."""

from __future__ import annotations

from typing import Any

import numpy as np

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.web.chromium import Chromium
from tests.web.pages import open_application, results_of
from volta_fn import lax, nn, random
from volta_fn.web.export import Function

X = np.linspace(-3, 3, 35, dtype=np.float32).reshape(5, 7)
INTEGERS = np.array([5, -7, 0, 3, 2**31 - 1], np.int32)


def newton(x: Any) -> Any:
    """Run a while loop whose number of iterations depends on the data."""
    return lax.while_loop(lambda s: jnp.abs(s * s - x).max() > 1e-3, lambda s: (s + x / s) / 2, jnp.ones_like(x))


PROGRAMS = {
    "elementwise": (lambda x: (jnp.tanh(x), jnp.exp(x), jnp.sin(x), lax.erf(x), jnp.round(x), jnp.sqrt(jnp.abs(x))), (X,)),
    "products": (lambda x: (x @ x.T, nn.softmax(x), jnp.cumsum(x, 1), x.sum(0), x.max()), (X,)),
    "convolution": (
        lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME"),
        (np.arange(2 * 3 * 9 * 9, dtype=np.float32).reshape(2, 3, 9, 9) / 100, np.ones((4, 3, 3, 3), np.float32)),
    ),
    "scan": (lambda x: lax.scan(lambda c, row: (c + row, c * row), jnp.zeros(7), x), (X,)),
    "while": (newton, (np.array([2.0, 9.0, 100.0], np.float32),)),
    "cond": (lambda x, i: lax.switch(i, [jnp.sin, jnp.cos, lambda x: x * 2], x), (X, np.int32(2))),
    "slices": (lambda x, i: (lax.dynamic_slice_in_dim(x, i, 2), x[jnp.array([3, 0, 3])], x.at[1].add(x[4])), (X, np.int32(9))),
    "sort": (lambda x: (jnp.sort(x.ravel()), jnp.argsort(-x, 1), lax.top_k(x, 3)), (X,)),
    "integers": (lambda i: (i // 3, i % 3, i << 2, lax.population_count(i), i * i), (INTEGERS,)),
    "random": (lambda k: (random.normal(random.key(k), (20,)), random.permutation(random.key(k), 20)), (np.uint32(3),)),
    "bfloat16": (lambda x: (x.astype("bfloat16") * 3, jnp.asarray(x, "bfloat16") @ jnp.ones((7, 2), "bfloat16")), (X,)),
    "fused": (lambda x: (x * 1.0001 + 1e-7, lax.lgamma(jnp.abs(x) + 0.3), lax.digamma(jnp.abs(x) + 0.3), jnp.maximum(x, jnp.nan)), (X,)),
    "empty": (lambda x: (x[:0].sum(), x[:, :0] + 1, jnp.float32(2)), (X,)),
}


def test_programs_give_what_they_give_in_python() -> None:
    flat = lambda f: lambda *args: tuple(vf.tree.leaves(f(*args)))
    expected = {
        name: [np.asarray(leaf, np.float64) for leaf in vf.tree.leaves(f(*map(jnp.asarray, args)))] for name, (f, args) in PROGRAMS.items()
    }
    functions = {
        name: Function(flat(f), [jnp.asarray(a) for a in args], [f"r{k}" for k in range(len(expected[name]))])
        for name, (f, args) in PROGRAMS.items()
    }
    with Chromium() as browser:
        manifest = open_application(browser, {}, functions, wasm=True)
        results = results_of(browser, manifest, list(functions))
    for name, values in expected.items():
        assert not isinstance(results[name], str), f"{name}: {results[name]}"
        for actual, value in zip(results[name], values, strict=True):
            np.testing.assert_allclose(np.asarray(actual, np.float64), value, rtol=3e-6, atol=3e-6, err_msg=name)


def test_state_is_updated_in_place_and_swapped() -> None:
    """Results may lie in the memory of donated arguments, and be arguments themselves."""
    state = {"a": jnp.arange(4.0), "b": jnp.ones(4)}
    functions = {
        "swap": Function(lambda a, b: (b, a), ["a", "b"], ["a", "b"]),
        "step": Function(lambda a, b: (a + b, b * 2, (a * b).sum()), ["a", "b"], ["a", "b", "sum"]),
    }
    script = """async () => {
      const sums = [];
      for (let i = 0; i < 3; i++) {
        sums.push((await app.run('step', {}, ['sum'])).sum[0]);
        await app.run('swap');
      }
      return [sums, [...await app.read('a')], [...await app.read('b')]];
    }"""
    with Chromium() as browser:
        open_application(browser, state, functions, wasm=True)
        sums, a, b = browser.run(script)
    x, y, expected = np.arange(4.0), np.ones(4), []
    for _ in range(3):
        expected.append((x * y).sum())
        x, y = y * 2, x + y
    assert sums == expected
    assert (a, b) == (x.tolist(), y.tolist())
