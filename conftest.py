"""The settings of all tests and doctests: examples, threads, the cache folder."""

import gc
import importlib
import os
import shutil
import tempfile
import zlib
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Draw the same examples in every run, so that a failure is found again; more of the same examples would find nothing new.
settings.register_profile(
    "strict", deadline=None, derandomize=True, max_examples=50, suppress_health_check=[HealthCheck.too_slow], database=None
)
settings.load_profile("strict")

# Test processes share the cores: threads of BLAS would only wait for each other. JAX, an oracle here, computes each function once, so
# that its compiler's optimisations cost more than they save. Both variables are read when those libraries are loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

# Tests combine arrays of all dtypes.
os.environ.setdefault("VOLTA_NUMPY_DTYPE_PROMOTION", "standard")

# The compiler verifies what it does; VOLTA_VERIFY=0 tells how long tests take without.
os.environ.setdefault("VOLTA_VERIFY", "1")

# A GPU in software (Mesa's) compiles a shader for a tenth of a second and runs it once: it need not optimise.
os.environ.setdefault("GALLIVM_PERF", "nopt")

# Compiled code is kept in a folder of this session, which its processes share: never in the user's. VOLTA_TEST_CACHE_DIR names another one.
_IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
_TEMPORARY = None if _IS_WORKER or "VOLTA_TEST_CACHE_DIR" in os.environ else tempfile.mkdtemp(prefix="volta-fn-tests-")
if not _IS_WORKER:
    os.environ["VOLTA_CACHE_DIR"] = _TEMPORARY or os.environ["VOLTA_TEST_CACHE_DIR"]

# pytest imports modules with doctests by their files, and makes each an attribute of its package, unless it is loaded: volta_fn.jit is both
# a package and, for all who import volta_fn, a function. To be loaded after the settings above.
import volta_fn  # noqa: E402

_PACKAGE = Path(volta_fn.__file__).parent


def pytest_collect_file(file_path: Path) -> None:
    """Import a module's package before pytest imports the module by its file.

    A package that loads the module would have another copy of it, whose classes differ from those of the first one.
    """
    parts = file_path.with_suffix("").parts
    if file_path.suffix == ".py" and file_path.is_relative_to(_PACKAGE):
        importlib.import_module(".".join([_PACKAGE.name, *parts[len(_PACKAGE.parts) : -1]]))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import and parametrise the tests without garbage collections, and let later ones pass over all that collecting them made.

    These are 1.6 million objects that stay: looking at them took a third of the time of collecting tests, and a second of each test that
    collects garbage.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_unconfigure() -> None:
    """Remove the session's cache folder."""
    if _TEMPORARY is not None:
        shutil.rmtree(_TEMPORARY, ignore_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that run samples of the tests."""
    parser.addoption("--every", type=int, default=1, metavar="N", help="run one test in N")
    parser.addoption("--heavy-every", type=int, default=1, metavar="N", help="of the tests that take long, run one in N")
    parser.addoption("--shift", type=int, default=0, metavar="K", help="which of the N samples of either: K modulo N")


#: Tests that take long, as they compile shaders, emulate a GPU, run programs, draw some, or have JAX compile some: they have a third of
#: their share in samples.
_HEAVY = tuple(
    f"tests/{name}"
    for name in (
        "targets/wgsl/",
        "targets/gpu/",
        "targets/nvidia/attention/",
        "targets/nvidia/matmul/",
        "targets/nvidia/peers/",
        "targets/nvidia/recurrence/",
        "targets/nvidia/rows/",
        "targets/nvidia/translation/",
        "targets/nvidia/test_convolution.py",
        "targets/nvidia/test_patches.py",
        "programs/",
        "examples/",
        "benchmarks/",
        "web/",
        "catalogue/test_catalogue.py",
        "experimental/checkify/",
        "experimental/sparse/",
        "fuzz/",
        "optim/test_optimizers.py",
        "optim/test_torch.py",
        "random/test_gamma_family.py",
        "test_image.py",
    )
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests outside the sample, which a hash of their names draws."""
    every, heavy_every, shift = (config.getoption(name) for name in ("every", "heavy_every", "shift"))

    def is_drawn(item: pytest.Item) -> bool:
        number = zlib.crc32(item.nodeid.encode()) + shift
        if not item.nodeid.startswith(_HEAVY):
            return number % every == 0
        return number % (every * 3 if every > 1 else 1) == 0 and number % heavy_every == 0

    drawn = [item for item in items if is_drawn(item)]
    config.hook.pytest_deselected(items=[item for item in items if not is_drawn(item)])
    items[:] = drawn


@pytest.fixture(autouse=True, scope="session")
def names_of_examples(doctest_namespace: dict[str, object]) -> None:
    """Let examples use `vf`, `jnp`, `nn` and `optim`, as the packages' docstrings say."""
    doctest_namespace.update(vf=volta_fn, jnp=volta_fn.numpy, nn=volta_fn.nn, optim=volta_fn.optim)
