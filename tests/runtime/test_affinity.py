"""Where workers wake up; `tests/targets/cpu/runtime/test_pool.py` sees to workers that run."""

from __future__ import annotations

import sys

import pytest

from volta_fn.runtime import native_calls
from volta_fn.runtime.llvm.text import Module


def test_without_linuxs_functions_nothing_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = []
    for platform in (sys.platform, "darwin"):
        monkeypatch.setattr(sys, "platform", platform)
        module = Module()
        native_calls.write_affinity(module)
        texts.append(str(module))
    assert "sched_getcpu" not in texts[1] and "call" not in texts[1]
    assert all(f"@{name}()" in texts[1] for name in ("register_worker", "exclude_current_cpu"))
