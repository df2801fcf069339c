"""Strict settings for every test: warnings are errors (see pyproject.toml), generated examples are the same in every run."""

import os
import sys
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The same examples in every run, so that more of them would find no more the next time.
settings.register_profile(
    "strict", deadline=None, derandomize=True, max_examples=50, suppress_health_check=[HealthCheck.too_slow], database=None
)
settings.load_profile("strict")

# Two test processes share the cores: BLAS threads of their own would only wait for each other. JAX, an oracle here, is asked for
# numbers once, so that its compiler's optimisations cost more than they save. Both are read when those libraries are loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

#: Tests whose jitted functions become machine code, where llvmlite is installed. Compiling takes far longer than computing with a handful
#: of numbers, so that tests of semantics run on NumPy; that the native lane computes the same is what its own tests are about.
NATIVE = ("targets/cpu", "models", "programs", "test_jit.py", "test_random_programs.py", "test_threads.py")

#: Tests that are about the CPU, or compute their reference values there: they run there whatever VOLTA_DEVICE says, as does every test that
#: uses `on_cpu`.
CPU = ("targets/cpu", "targets/numpy", "compiler", "core/test_device.py", "test_memory.py", "test_the_tests.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--every", type=int, default=1, metavar="N", help="run one test in N, the same ones in every run")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    every = config.getoption("every")
    number = {item: zlib.crc32(item.nodeid.encode()) % every for item in items}
    config.hook.pytest_deselected(items=[item for item in items if number[item]])
    items[:] = [item for item in items if not number[item]]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """A test of 64-bit dtypes passes where a device without them refuses them."""
    from tests.narrow_devices import lacks_the_dtype, says_that_it_is_wide
    from volta_fn.errors import DTypeError

    try:
        yield
    except (DTypeError, AssertionError) as error:
        if not (lacks_the_dtype(error) and says_that_it_is_wide(item)):
            raise


def _path(request: pytest.FixtureRequest) -> str:
    root = Path(__file__).parent
    return request.path.relative_to(root).as_posix() if request.path.is_relative_to(root) else ""


@pytest.fixture(autouse=True)
def _lane(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    import volta_fn  # not before the settings above

    backend = volta_fn.devices("cpu")[0].backend
    monkeypatch.setattr(backend, "native", backend.native and _path(request).startswith(NATIVE))


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU is the default device of the process."""
    from volta_fn.core import device

    monkeypatch.setattr(device, "_process_default", device.find_device("cpu"))


@pytest.fixture
def frequent_thread_switches() -> Iterator[None]:
    """Let the interpreter switch threads five hundred times as often as usual."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual)


@pytest.fixture(autouse=True)
def _device(request: pytest.FixtureRequest) -> None:
    if _path(request).startswith(CPU):
        request.getfixturevalue("on_cpu")
