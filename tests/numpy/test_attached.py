"""The names that arrays have before the module of their methods is imported."""

from __future__ import annotations

import runpy
import subprocess
import sys

import pytest

from tests.test_layers import MODULES
from volta_fn.core.arrays import array
from volta_fn.numpy.attached import FUNCTIONS, NAMES

IMPORTS = "import numpy as np, sys; import volta_fn.numpy as jnp; from volta_fn.core.arrays import array"


def test_they_are_what_the_module_of_methods_attaches(monkeypatch):
    results: list[str] = []
    monkeypatch.setattr(array, "attach", lambda name, function: results.append(name))
    runpy.run_path(str(MODULES["volta_fn.numpy.methods"]))
    assert sorted(results) == sorted(NAMES)


@pytest.mark.parametrize(
    "use",
    [
        "jnp.arange(6.0).sum() == 15",
        "(jnp.ones((2, 3)) @ jnp.ones((3, 2))).shape == (2, 2)",
        "jnp.ones((2, 3)).T.shape == (3, 2)",
        "(np.ones((2, 3)) @ jnp.ones((3, 2))).shape == (2, 2)",
        "round(jnp.float32(1.6)) == 2",
        "array.Array.sum.__doc__",
        "jnp.arange(3.0).mean() == 1",
        "hasattr(array.Array, 'T') and not hasattr(jnp.ones(3), 'relu')",
    ],
)
def test_first_uses_in_a_new_process(use):
    subprocess.run([sys.executable, "-c", f"{IMPORTS}\nassert {use}"], check=True)


#: The modules of `numpy` that others of them import.
SHARED = {"creation", "arithmetic", "reductions"}


@pytest.mark.parametrize("module", FUNCTIONS)
def test_a_function_loads_its_module_alone(module):
    method, _, function = FUNCTIONS[module].split()[0].partition(":")
    others = {f"volta_fn.numpy.{other}" for other in {*FUNCTIONS, "methods"} - SHARED - {module}}
    program = (
        f"{IMPORTS}\nmethod = getattr(array.Array, {method!r})\n"
        f"assert method is sys.modules['volta_fn.numpy.{module}'].{function or method} is vars(array.Array)[{method!r}]\n"
        f"assert not {others} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_method_that_is_not_there_yet_raises(monkeypatch):
    monkeypatch.setattr(array.Array, "early", None, raising=False)  # so that it is deleted again
    array.attach_unloaded("early", "volta_fn.numpy.methods")
    with pytest.raises(AttributeError, match="arrays have no 'early' yet"):
        array.Array.early
