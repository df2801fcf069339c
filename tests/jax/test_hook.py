"""`import jax` answered by volta_fn, in processes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jax.programs import output_of, run

IMPORTS = """
import importlib, importlib.metadata, importlib.util, pickle, sys, typing
import jax, jaxlib, jax.numpy as jnp, jax.scipy.stats.norm as norm
from jax import Array, lax, random
from jax.experimental import enable_x64
from jax.scipy.special import logsumexp
import volta_fn as vf
"""


def test_every_form_of_import_gives_volta_fn() -> None:
    checks = """
assert jax.grad is vf.grad and lax.add is vf.lax.add and jnp.sin is vf.numpy.sin and logsumexp is vf.scipy.special.logsumexp
assert sys.modules["jax.numpy"] is jnp and jax.numpy is jnp and norm.logpdf is vf.scipy.stats.norm.logpdf
assert importlib.import_module("jax.scipy.linalg").cholesky is vf.scipy.linalg.cholesky
assert importlib.util.find_spec("jax.nonsense") is None and jnp.__spec__.name == jnp.__name__ == "jax.numpy"
assert pickle.loads(pickle.dumps(jnp.sin)) is jnp.sin and jnp.__all__ and "sin" in dir(jnp)
"""
    assert output_of(IMPORTS + checks) == ""


def test_versions_and_annotations() -> None:
    checks = """
assert importlib.metadata.version("jax") == importlib.metadata.version("jaxlib") == jax.__version__ == jaxlib.__version__
assert jax.__version_info__ == tuple(map(int, jax.__version__.split(".")))
def f(x: "jax.Array", y: Array | None = None) -> jnp.ndarray: ...
assert typing.get_type_hints(f)["x"] is jax.Array and isinstance(jnp.ones(2), jax.Array) and isinstance(random.key(0), Array)
assert not isinstance(2.0, Array)
"""
    assert output_of(IMPORTS + checks) == ""


def test_unknown_names_raise_the_usual_errors() -> None:
    checks = """
for statement in ("jax.nonsense", "jnp.nonsense", "from jax import nonsense", "import jax.nonsense", "from jax.numpy import nonsense"):
    try: exec(statement)
    except (AttributeError, ImportError) as error: print(type(error).__name__)
"""
    assert output_of(IMPORTS + checks).split() == ["AttributeError", "AttributeError", "ImportError", "ModuleNotFoundError", "ImportError"]


def test_classes_of_arrays_are_named_as_in_jax() -> None:
    """Libraries that accept arrays without importing JAX look at the names of their classes and modules."""
    checks = """
x = jnp.eye(2)
assert ("jax", "Array") in [(base.__module__, base.__name__) for base in type(x).__mro__] and type(x).__name__ == "ArrayImpl"
assert (pickle.loads(pickle.dumps(x)) == x).all() and pickle.loads(pickle.dumps(type(x))) is type(x)
from jax.experimental import sparse
for kind in (sparse.BCOO, sparse.BCSR, sparse.COO, sparse.CSR, sparse.CSC):
    matrix = kind.fromdense(x)
    assert type(matrix).__module__.startswith("jax.experimental.sparse") and isinstance(matrix, sparse.JAXSparse)
    assert (pickle.loads(pickle.dumps(matrix)).todense() == x).all() and repr(matrix).startswith(kind.__name__)
"""
    assert output_of(IMPORTS + checks) == ""


def test_indices_and_dtypes_are_those_of_jax() -> None:
    checks = """
import numpy as np
x = jnp.arange(5)
print(x[10], x[jnp.array([10, -7])], x.at[7].set(1), x.at[jnp.array([10, 0])].add(1), jnp.take(x, 9, mode="clip"))
print(jnp.asarray(np.ones(2)).dtype, jnp.ones(2, "float64").dtype, jnp.float64(1).dtype, (np.float64(2) * jnp.ones(1)).dtype)
try: jnp.asarray(2**40)
except OverflowError: print("overflow")
"""
    printed = output_of(IMPORTS + checks).splitlines()
    assert printed == ["4 [4 0] [0 1 2 3 4] [1 1 2 3 4] 4", "float32 float32 float32 float32", "overflow"]


def test_installing_twice_is_installing_once_and_a_real_jax_is_refused() -> None:
    assert output_of("volta_fn.jax.install()\nimport sys\nprint(sum(type(f).__name__ == 'Finder' for f in sys.meta_path))") == "2"
    completed = run("-c", "import sys, types\nsys.modules['jax'] = types.ModuleType('jax')\nimport volta_fn.jax\nvolta_fn.jax.install()")
    assert "AlreadyImportedError" in completed.stderr and "before the first import of jax" in completed.stderr


def test_without_install_nothing_changes() -> None:
    program = "import volta_fn.jax.numpy as jnp, numpy, sys; print('jax' in sys.modules, jnp.asarray(numpy.ones(1)).dtype)"
    assert run("-W", "error", "-c", program).stdout.strip() == "False float64"


@pytest.mark.parametrize("as_module", [False, True])
def test_programs_are_run_as_main_with_their_arguments(as_module: bool, tmp_path: Path) -> None:
    path = tmp_path / "program_of_jax.py"
    path.write_text("import sys, jax\nprint(__name__, sys.argv[1:], jax.jit(lambda x: x + 1)(1))\n")
    (tmp_path / "jax_helper.py").write_text("")
    how = ["-m", "program_of_jax"] if as_module else [str(path)]
    completed = run("-m", "volta_fn.jax", *how, "--flag", "3", env={"PYTHONPATH": str(tmp_path)})
    assert completed.stdout.strip() == "__main__ ['--flag', '3'] 2", completed.stderr


def test_programs_may_ask_for_devices_before_they_import_jax(tmp_path: Path) -> None:
    path = tmp_path / "devices.py"
    path.write_text(
        "import os\nos.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=3'\nimport jax\nprint(jax.device_count())\n"
    )
    completed = run("-m", "volta_fn.jax", str(path))
    assert completed.stdout.strip() == "3", completed.stderr


#: Counts devices after what starts none in JAX, with both ways to ask for their number.
LAZY = """
import importlib, os
import jax, jax.numpy as jnp, numpy as np
from jax._src import xla_bridge
for name in "export scipy.stats nn.initializers experimental.pallas experimental.sparse experimental.checkify".split():
    importlib.import_module(f"jax.{name}")
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_default_device", None)
jax.config.update("jax_num_cpu_devices", COUNT)
jax.jit(lambda x: x * 2), jax.vmap(jax.grad(lambda x: x.sum())), jnp.vectorize(lambda x: x), jax.nn.initializers.he_normal()
jax.eval_shape(jnp.sin, jax.ShapeDtypeStruct((3,), jnp.float32)), jnp.result_type(1.0, jnp.int32), jnp.finfo(jnp.float32).eps
jax.tree.map(lambda x: x + 1, {"a": 1}), jax.P("x"), jax.sharding.AbstractMesh((2,), ("x",)), jnp.shape(np.ones(3))
unused = xla_bridge.backends_are_initialized(), dict(xla_bridge._backends)
jax.config.update("jax_num_cpu_devices", LATER)
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=NUMBER"
print(unused, jax.device_count(), xla_bridge.backends_are_initialized(), [*xla_bridge._backends])
"""


@pytest.mark.parametrize(("count", "later", "flag"), [(8, 3, 1), (-1, -1, 4)])
def test_devices_start_when_they_are_used(count: int, later: int, flag: int) -> None:
    program = LAZY.replace("COUNT", str(count)).replace("LATER", str(later))
    program = program.replace("NUMBER", str(flag)) if flag > 1 else program.replace('os.environ["XLA_FLAGS"]', "flag")
    environment = {"JAX_PLATFORMS": "cpu"}
    theirs = run("-c", program, env=environment)
    ours = run("-c", "import volta_fn.jax as v; v.install()\n" + program, env=environment)
    assert ours.stdout == theirs.stdout == f"(False, {{}}) {max(later, flag)} True ['cpu']\n", theirs.stderr + ours.stderr


def test_usage() -> None:
    assert run("-m", "volta_fn.jax", "--help").stdout.startswith("usage: python -m volta_fn.jax program.py")
    assert run("-m", "volta_fn.jax").returncode == 2


def test_environment_variables_of_jax_set_its_settings() -> None:
    completed = run(
        "-c", "import volta_fn.jax as v; v.install(); import jax.numpy as jnp; print(jnp.ones(1).dtype)", env={"JAX_ENABLE_X64": "1"}
    )
    assert completed.stdout.strip() == "float64", completed.stderr


def test_variables_that_a_program_sets_before_it_imports_jax(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os\nos.environ['JAX_ENABLE_X64'] = '1'\nos.environ['JAX_NUMPY_RANK_PROMOTION'] = 'raise'\n"
        "import jax, jax.numpy as jnp\nprint(jnp.ones(1).dtype, jax.config.jax_numpy_rank_promotion)\n"
    )
    ours, theirs = run("-m", "volta_fn.jax", str(program)), run(str(program))
    assert ours.stdout == theirs.stdout == "float64 raise\n", ours.stderr + theirs.stderr


def test_a_variable_that_was_read_is_not_read_again() -> None:
    program = (
        "import volta_fn.jax as v; v.install(); v.config.update('jax_enable_x64', False)\nimport jax.numpy as jnp; print(jnp.ones(1).dtype)"
    )
    completed = run("-c", program, env={"JAX_ENABLE_X64": "1"})
    assert completed.stdout.strip() == "float32", completed.stderr


def test_indices_and_values_in_jaxs_mode() -> None:
    result = output_of(
        "import warnings, jax, numpy as np\nfrom jax import lax, numpy as jnp\n"
        "x = jnp.arange(5.0)\n"
        "print(jnp.take(x, jnp.array([1, 9])), jnp.take_along_axis(x, jnp.array([-9]), 0))\n"
        "print(jnp.zeros(1, 'uint32').at[0].set(2**32 - 1), lax.convert_element_type(2**32 + 3, 'int32'))\n"
        "print(lax.conj(jnp.float32(2)), lax.mul(np.int8(100), np.int8(2), out_dtype='int16'))\n"
        "print(jnp.convolve(jnp.array([1, 2]), jnp.array([3])))\n"
        "with warnings.catch_warnings(record=True) as told:\n"
        "    warnings.simplefilter('always')\n"
        "    print(jnp.zeros(2, int).at[0].set(2.5), 'incompatible types' in str(told[0].message))\n"
        "try:\n    jnp.zeros((2, 0))[0, 0]\nexcept IndexError as error:\n    print('size 0' in str(error))\n"
        "print(jnp.result_type(jax.random.key(0)), jax.random.key(0).dtype.name)"
    )
    assert result.splitlines() == [
        "[ 1. nan] [nan]", "[4294967295] 3", "(2+0j) 200", "[3. 6.]", "[2 0] True", "True", "key<fry> key<fry>",
    ]  # fmt: skip


def test_raw_keys_may_be_refused_and_keys_have_no_hash() -> None:
    result = output_of(
        "import warnings, jax\nraw = jax.random.PRNGKey(0)\n"
        "with jax.legacy_prng_key('error'):\n"
        "    try:\n        jax.random.uniform(raw)\n    except ValueError as error:\n        print('Legacy uint32' in str(error))\n"
        "with warnings.catch_warnings(record=True) as told, jax.legacy_prng_key('warn'):\n"
        "    warnings.simplefilter('always')\n    jax.random.uniform(raw)\n    print('Legacy uint32' in str(told[0].message))\n"
        "    jax.random.uniform(jax.random.key(0))\n    print(len(told))\n"
        "try:\n    hash(jax.random.key(0))\nexcept TypeError as error:\n    print('unhashable' in str(error))"
    )
    assert result.splitlines() == ["True", "True", "1", "True"]


def test_no_constant_of_the_package_exceeds_32_bits() -> None:
    """Constants with the highest bit of 32 are those of a dtype that holds them."""
    result = output_of(
        "import jax, jax.numpy as jnp\nfrom jax import lax\nx = jnp.array([1.001, 3.3])\n"
        "round = lambda x: lax.reduce_precision(x, 5, 2)\n"
        "print(round(x), jax.jit(lambda x: lax.reduce_precision(x, 8, 7))(x), jax.grad(lambda x: round(x).sum())(x))\n"
        "print(lax.full((1,), 2**31, 'uint32'), lax.full_like(jnp.ones(1, 'uint32'), 2**32 - 1), jnp.full(1, 2**31, 'uint32'))\n"
        "print(lax.convert_element_type(2**32 + 1, 'int32'), lax.full((), 2**40, 'float32'))"
    )
    assert result.splitlines() == ["[1.  3.5] [1.       3.296875] [1. 1.]", "[2147483648] [4294967295] [2147483648]", "1 1.0995116e+12"]


def test_arrays_have_jaxs_name_and_one_hot_takes_floats_with_a_warning() -> None:
    program = (
        "import jax, jax.numpy as jnp, warnings\nprint(type(jnp.ones(1)).__name__)\nwith warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n    print(jax.nn.one_hot(jnp.array([1.0]), 2).tolist(), seen[0].category.__name__)"
    )
    assert output_of(program).split("\n") == ["ArrayImpl", "[[0.0, 1.0]] DeprecationWarning"]
