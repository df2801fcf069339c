"""An NVIDIA GPU on the CPU: the driver on a stand-in for its library, which runs shaders by the emulation of their translation.

`pytest -p tests.targets.nvidia.emulated_gpu FILE …` runs files of tests with it as the only GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

# Modules of the package are imported in functions: a plugin is loaded before settings are made for tests.


_installed: list[Any] = []


class _Compiler:
    """Stands for the processes that compile: machine code is the WGSL itself."""

    def prepare(self) -> None:
        """Do nothing: there are no processes."""

    def ask(self, request: list[bytes]) -> list[bytes]:
        from volta_fn.errors import VoltaError
        from volta_fn.targets.nvidia import compilation
        from volta_fn.targets.nvidia.stream import CONDITION_KERNEL
        from volta_fn.targets.nvidia.translation import translate

        if request[0].decode() == CONDITION_KERNEL:
            return [b"ptx", compilation._THREADS.pack(1, 1, 1), request[0]]
        try:
            shader = translate(request[0].decode())
        except VoltaError as error:
            return [b"error", b"", error.message.encode()]
        return [b"ptx", compilation._THREADS.pack(*shader.threads), request[0]]


class _Kernels(dict[str, Callable[..., None]]):
    """Every text is a kernel."""

    def __init__(self, fake: Any) -> None:
        self._fake = fake

    def __contains__(self, source: object) -> bool:
        return True

    def __getitem__(self, source: str) -> Callable[..., None]:
        from tests.targets.nvidia.translation import emulation
        from volta_fn.targets.nvidia.stream import CONDITION_KERNEL

        if source == CONDITION_KERNEL:
            return self._fake.set_condition  # type: ignore[no-any-return]

        def run(words: list[int], grid: tuple[int, int, int]) -> None:
            count = len(words) // 2
            emulation.kernel(source).run(grid, words[:count], words[count:-1], words[-1])

        return run


def install(monkeypatch: pytest.MonkeyPatch, name: str = "an emulated GPU", capability: tuple[int, int] = (7, 5)) -> Any:
    """Replace the driver's library and its compiler until `monkeypatch` is undone; return the stand-in.

    The GPU has no matrix units by default: what is no shader cannot run.
    """
    from tests.targets.nvidia.fake_cuda import FakeCuda
    from volta_fn.targets.nvidia import compilation, library

    fake = FakeCuda((name,), eager=True)
    fake.strict = False
    fake.kernels = _Kernels(fake)
    fake.capability = capability
    monkeypatch.setattr(library, "open_library", lambda: fake)
    monkeypatch.setattr(compilation, "pool", _Compiler)
    monkeypatch.setattr(compilation, "cache_dir", lambda: None)
    library._functions.cache_clear()
    return fake


def device(monkeypatch: pytest.MonkeyPatch, *gpu: Any) -> Any:
    """Return the emulated GPU; for the other arguments see `install`."""
    from volta_fn.core.devices.device import Device
    from volta_fn.targets.gpu.backend import GpuBackend
    from volta_fn.targets.nvidia.driver import adapters

    install(monkeypatch, *gpu)
    (adapter,) = adapters()
    return Device("gpu", 0, adapter.name, GpuBackend(adapter))


# A plugin of pytest.


def pytest_sessionstart(session: pytest.Session) -> None:
    """Make it the only GPU of all tests."""
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setenv("VOLTA_GPU_DRIVER", "nvidia")
    _installed.append(install(monkeypatch))
    session.config.add_cleanup(monkeypatch.undo)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Fail tests that use the library wrongly."""
    result = yield
    for fake in _installed:
        broken = [*fake.broken]
        fake.broken.clear()
        assert not broken, broken
    return result
