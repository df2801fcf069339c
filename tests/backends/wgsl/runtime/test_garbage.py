"""Python's search for garbage stops while programs are written, and goes on as it was."""

from __future__ import annotations

import gc

import pytest

from volta_fn.backends.wgsl.runtime.garbage import uncollected


@pytest.mark.parametrize("wanted", [True, False])
def test_it_is_left_as_it_was(wanted: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if wanted else gc.disable)()
        with pytest.raises(ValueError, match="inside"), uncollected():
            assert not gc.isenabled()
            raise ValueError("inside")
        assert gc.isenabled() == wanted
    finally:
        (gc.enable if before else gc.disable)()
