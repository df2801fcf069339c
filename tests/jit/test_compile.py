"""The cyclic garbage collector is paused while programs are made."""

from __future__ import annotations

import gc

import pytest

import volta_fn as vf
from volta_fn.jit.compile import gc_paused


@pytest.mark.parametrize("wanted", [True, False])
def test_it_is_left_as_it_was(wanted: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if wanted else gc.disable)()
        with pytest.raises(ValueError, match="inside"), gc_paused():
            assert not gc.isenabled()
            raise ValueError("inside")
        assert gc.isenabled() == wanted
    finally:
        (gc.enable if before else gc.disable)()


def test_functions_are_traced_without() -> None:
    seen = []

    @vf.jit
    def f(x: vf.Array) -> vf.Array:
        seen.append(gc.isenabled())
        return x + 1

    assert gc.isenabled()
    f(1.0)
    assert seen == [False]
    assert gc.isenabled()
