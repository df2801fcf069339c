"""The target that each test runs on, and fixtures of tests in several folders.

The root's conftest.py has the settings of all tests.
"""

import gc
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

#: Tests whose jitted functions become machine code, where llvmlite is installed. All others run on the NumPy target: compiling takes far
#: longer than computing a handful of numbers, and that machine code computes the same is what the CPU target's own tests are about.
COMPILED = (
    "compiler/emission",
    "compiler/passes/test_interior_padding.py",
    "targets/cpu",
    "runtime",
    "models",
    "programs",
    "stress",
    "docs/test_pages.py",
    "jit/test_function.py",
    "jit/test_fused.py",
    "numpy/elementwise/test_extremes.py",
    "numpy/test_large_indices.py",
    "primitives/test_ragged.py",
    "test_random_programs.py",
    "test_threads.py",
)

#: Tests that are about the CPU, or compute their reference values there: they run there whatever VOLTA_DEVICE says, as does every test that
#: uses `on_cpu`.
ON_CPU = (
    "targets/cpu",
    "runtime",
    "targets/numpy",
    "compiler",
    "stress",
    "core/devices/test_device.py",
    "primitives/elementwise/test_full_width.py",
    "jit/test_fused.py",
    "test_memory.py",
    "test_scalars.py",
    "test_the_tests.py",
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Let a test of 64-bit dtypes pass where a device without them refuses them."""
    from tests.narrow_devices import lacks_the_dtype, says_that_it_is_wide
    from volta_fn.errors import DTypeError

    try:
        yield
    except (DTypeError, AssertionError) as error:
        if not (lacks_the_dtype(error) and says_that_it_is_wide(item)):
            raise


def _path(request: pytest.FixtureRequest) -> str:
    return request.path.relative_to(Path(__file__).parent).as_posix()


@pytest.fixture(autouse=True)
def _target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile jitted functions in the tests of `COMPILED`; run `ON_CPU` on the CPU."""
    import volta_fn  # not before the settings of the root's conftest.py

    path, backend = _path(request), volta_fn.devices("cpu")[0].backend
    # Set also where it stays the same, so that what a test changes is undone.
    monkeypatch.setattr(backend, "native", backend.native and path.startswith(COMPILED))
    if path.startswith(ON_CPU):
        request.getfixturevalue("on_cpu")


@pytest.fixture(autouse=True, scope="session")
def _no_plans_on_disk() -> Iterator[None]:
    """Plan all programs of GPUs anew: tests plant faults in the compiler, and their plans have the names of others."""
    from volta_fn.targets.wgsl import program_plan

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(program_plan, "cache_dir", lambda: None)
        yield


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU as the default device of the process."""
    from volta_fn.core.devices import device

    monkeypatch.setattr(device, "_process_default", device.find_device("cpu"))


@pytest.fixture
def frequent_thread_switches() -> Iterator[None]:
    """An interpreter that switches threads five hundred times as often as usual."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual)


@pytest.fixture
def default_interrupt_handler() -> Iterator[None]:
    """Python's own handler of Ctrl-C, which shells replace in background jobs; the test must leave it in place."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def new_objects_only() -> None:
    """A garbage collector that passes over the objects of earlier modules: for millions of them it takes a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def no_collections() -> Iterator[None]:
    """No garbage collections: a parser makes millions of nodes that stay, and collections would take most of its time."""
    gc.disable()
    yield
    gc.enable()
