"""LLVM's functions without llvmlite's lock, and llvmlite's own where they are not there."""

from __future__ import annotations

import ctypes

import pytest

pytest.importorskip("llvmlite")

from volta_fn.runtime import native_calls
from volta_fn.runtime.llvm.machine import compile_object, load_object

TEXT = "define i64 @answer(i64 %x) {\nentry:\n  %y = mul i64 %x, 6\n  ret i64 %y\n}"


@pytest.mark.parametrize("is_known_version", [True, False])
def test_both_ways_compile(is_known_version: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_known_version:
        monkeypatch.setattr(native_calls, "_library", lambda: None)
    suffix = f"_{is_known_version}"
    (address,) = load_object(compile_object(TEXT, suffix), [f"answer{suffix}"])
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)(7) == 42
    with pytest.raises(RuntimeError):
        native_calls.parse("no LLVM IR")


def test_another_llvmlite_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert native_calls._library.__wrapped__() is not None
    functions = native_calls._FUNCTIONS
    for other in (("NoSuchFunction", None, []), ("GetBufferSize", ctypes.c_size_t, [ctypes.c_void_p] * 2)):
        monkeypatch.setattr(native_calls, "_FUNCTIONS", (*functions, other))
        assert native_calls._library.__wrapped__() is None
