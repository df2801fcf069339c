"""What released libraries use of JAX is here, as `tools/jax_uses.py` collected it from 383 wheels and 200 sources (attributes from 68)."""

from __future__ import annotations

import ast
import contextlib
import inspect
import zipfile
from pathlib import Path

import pytest

import volta_fn.jax
from tools.jax_uses import OBJECTS, USED, accepts, attributes, has, make_object, read_attributes, resolves, sources, used

NAMES = USED.read_text().split()

#: What is left: steps of JAX's tracing, which Oryx repeats, and attributes of refused names.
ABSENT = """
jax._src.clusters.ClusterEnv._cluster_types jax._src.clusters.SlurmCluster.is_env_present
jax._src.interpreters.pxla._cached_lowering_to_hlo.cache_clear
jax._src.interpreters.pxla._cached_lowering_to_hlo.cache_info
jax.experimental.pallas.tpu.BufferedRef.create jax.experimental.pallas.tpu.BufferedRef.input
jax.experimental.pallas.tpu.BufferedRef.input_output jax.experimental.pallas.tpu.BufferedRef.output
jax.extend.mlir.dialects.stablehlo.ComparisonTypeAttr.get jax.extend.mlir.ir.DenseI64ArrayAttr.get jax.extend.mlir.ir.DictAttr.get
jax.extend.mlir.ir.FunctionType.get jax.extend.mlir.ir.StringAttr.get jax.extend.mlir.ir.TupleType.get_tuple
jax.profiler.ProfileData.from_serialized_xspace
"""

#: Attributes that JAX's objects have by the same name as others of which libraries read them, and parts of JAX's own classes.
ABSENT_ATTRIBUTES = {
    "array": "clone format platform",
    "key": "addressable_data addressable_shards aval ptp",
    "mesh": "update",
    "struct": "format",
    "aval": "_or at broadcast normalize ptp shard",
    "custom_jvp": "_fun",
    "custom_vjp": "_fun",
    "derivative": "fun jaxpr",
    "variable": "pretty_print",
    "literal": "pretty_print",
    "primitive": "def_abstract_eval def_impl",
    "call primitive": "def_abstract_eval def_impl",
    "tree": "node_data",
    "tracer": "_or addressable_shards broadcast delete devices normalize parent shard update val",
    "mapped": "_or addressable_shards broadcast delete devices normalize shard update val",
    "differentiated": "_or addressable_shards broadcast delete devices normalize shard update",
    "ufunc": "_func",
    "ref": "format sharding",
    "sparse": "_info",
}


def test_used_names_are_here() -> None:
    assert len(NAMES) > 2500
    assert [name for name in NAMES if not resolves(name, "volta_fn.jax")] == sorted(ABSENT.split())


@pytest.mark.parametrize("name", OBJECTS)
def test_used_attributes_are_here(name: str) -> None:
    value = make_object(OBJECTS[name], volta_fn.jax)
    read = read_attributes()
    assert [*read] == [*OBJECTS] and sum(map(len, read.values())) > 200
    assert [attribute for attribute in read[name] if not has(value, attribute)] == ABSENT_ATTRIBUTES.get(name, "").split()


def test_sources_are_those_of_wheels_and_folders(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, text in (("a.py", "import jax\n"), ("b.py", "import numpy\n"), ("c.py", "print 'jax'\n"), ("d.txt", "jax")):
        (folder / name).write_text(text)
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as archive:
        archive.write(folder / "a.py", "a.py")
        archive.write(folder / "d.txt", "d.txt")
    for library in (folder, tmp_path / "a.whl"):
        assert [ast.unparse(module) for module in sources(library)] == ["import jax"]


def test_keywords_are_parameters() -> None:
    def function(x: int, /, y: int, *, z: int, **rest: int) -> None: ...

    assert [accepts(function, name) for name in ("x", "y", "z", "other")] == [True] * 4
    assert [accepts(function, name, named=True) for name in ("x", "y", "z", "other")] == [False, True, True, False]
    assert resolves("jax.jit(static_argnums)", "volta_fn.jax") and not resolves("jax.grad(static_argnums)", "volta_fn.jax")
    assert resolves("jaxlib.mlir.ir", "volta_fn.jax") and not resolves("jaxlib.mlir.nonsense", "volta_fn.jax")
    assert attributes(ast.parse("a.b.c(d.e)")) == {"b", "c", "e"}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import jax.numpy as jnp\njnp.linalg.norm(x)", {"jax.numpy", "jax.numpy.linalg", "jax.numpy.linalg.norm"}),
        ("import jax.lax\njax.lax.scan", {"jax.lax", "jax.lax.scan"}),
        ("from jax._src import core as c\nc.Jaxpr; d.e", {"jax._src.core", "jax._src.core.Jaxpr"}),
        ("from numpy import jax\njax.x", set()),
        ("import jaxlib.mlir.ir as ir\nir.Type", {"jaxlib.mlir.ir", "jaxlib.mlir.ir.Type"}),
        ("import jax\nlax = jax.lax\nlax.scan", {"jax", "jax.lax", "jax.lax.scan"}),
        ("from jax import vmap\nvmap(f, in_axes=0, **options)", {"jax.vmap", "jax.vmap(in_axes)"}),
        ("import jax\njax.config.update('jax_x', 1)", {"jax", "jax.config", "jax.config.update", "jax.config.jax_x"}),
    ],
)
def test_uses_are_names_with_their_attributes(source: str, names: set[str]) -> None:
    assert set(used(ast.parse(source))) == names


@pytest.mark.parametrize("name", OBJECTS)
def test_methods_have_the_parameters_of_jax(name: str) -> None:
    jax = pytest.importorskip("jax")
    theirs, ours = make_object(OBJECTS[name], jax), make_object(OBJECTS[name], volta_fn.jax)
    for attribute in dir(type(theirs)):
        if attribute.startswith("_") or not has(theirs, attribute) or not has(ours, attribute):
            continue
        with contextlib.suppress(TypeError, ValueError, NotImplementedError):  # no function, one in C, or no value
            parameters = inspect.signature(getattr(theirs, attribute)).parameters.values()
            inspect.signature(getattr(ours, attribute))
            named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and not p.name.startswith("_")]
            missing = [parameter for parameter in named if not accepts(getattr(ours, attribute), parameter)]
            assert not missing


def test_methods_use_the_parameters() -> None:
    jnp, random = volta_fn.jax.numpy, volta_fn.jax.random
    x = jnp.arange(6).reshape(2, 3, out_sharding=None)
    assert x.compress([True, False, True], axis=1, size=3, fill_value=9).tolist() == [[0, 2, 9], [3, 5, 9]]
    assert x.flatten(out_sharding=None).shape == (6,) and x.to_device(device=x.device).device == x.device and x.view(type=None) is x
    keys = random.split(random.key(0), 4).reshape(2, 2, order="C", out_sharding=None)
    assert keys.flatten(order="C").shape == keys.ravel(out_sharding=None).shape == (4,)
    with pytest.raises(ValueError, match="order must be 'C'"):
        keys.reshape(4, order="F")
    with pytest.raises(ValueError, match="type must be None"):
        x.view(type=list)
    ref = volta_fn.jax.new_ref(jnp.zeros(2))
    ref.addupdate(x=1.0, idx=0)
    assert ref[...].tolist() == [1, 0]
