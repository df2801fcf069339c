"""What libraries look up on JAX's classes and modules."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.jax.programs import output_of, output_of_jax
from volta_fn.compat import process
from volta_fn.core.devices.sharding import make_single_device_sharding
from volta_fn.extend import batching, interpreters

METHODS = (
    "all astype sum at reshape T mT dtype shape sharding item tolist addressable_shards __add__ __getitem__ __array__ committed".split()
)


def test_the_class_of_arrays_has_their_methods() -> None:
    result = output_of(
        "import inspect, jax, jax.numpy as jnp\n"
        f"print([name for name in {METHODS} if not hasattr(jax.Array, name) or name not in dir(jax.Array)])\n"
        "print(jax.Array.sum(jnp.ones(3)), jax.Array.__add__(jnp.ones(()), 1), jnp.ndarray.reshape(jnp.arange(4), 2, 2).shape)\n"
        "print(list(inspect.signature(jax.Array.sum).parameters)[:2], hasattr(jax.Array, 'nonsense'))\n"
        "print(isinstance(jnp.ones(2), jax.Array), issubclass(type(jnp.ones(2)), jax.Array), isinstance(2.0, jax.Array))"
    )
    assert result.splitlines() == ["[]", "3.0 2.0 (2, 2)", "['a', 'axis'] False", "True True False"]


def test_annotations_can_be_checked_at_runtime() -> None:
    program = (
        "import typing, jax, jax.numpy as jnp, jax.typing\n"
        "values = ['float32', jnp.float32, jnp.dtype('int8'), jnp.ones(2), jax.jit(abs), jax.nn.initializers.zeros, 2.0, None, [1]]\n"
        "for hint in (jax.typing.DTypeLike, jax.typing.ArrayLike, jax.stages.Wrapped, jax.nn.initializers.Initializer):\n"
        "    classes = tuple(typing.get_origin(h) or h for h in typing.get_args(hint) or (hint,))\n"
        "    print([isinstance(value, classes) for value in values])"
    )
    assert output_of(program) == output_of_jax(program)


def test_primitives_of_kernels_take_indices() -> None:
    program = """
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl
from jax._src.pallas import primitives

def kernel(x, y, z):
    mask = jnp.arange(4) < 3
    y[...] = primitives.load(x, (pl.ds(2, 4),), mask=mask, other=-1.0, eviction_policy="evict_last") + primitives.program_id(0)
    primitives.store(y, (pl.ds(0, 4),), primitives.load(y, ()) * 2, mask=~mask)
    z[...] = primitives.swap(y, (pl.ds(1, 2),), jnp.full(2, 9.0))

shapes = [jax.ShapeDtypeStruct((4,), "float32"), jax.ShapeDtypeStruct((2,), "float32")]
print(*pl.pallas_call(kernel, shapes, grid=(1,), interpret=True)(jnp.arange(8.0)))
"""
    assert output_of(program) == output_of_jax(program)


def test_dtypes_are_classes() -> None:
    result = output_of(
        "import pickle, numpy as np, jax.numpy as jnp\n"
        "print(all(isinstance(t, type) for t in (jnp.int8, jnp.bool_, jnp.bfloat16, jnp.float8_e4m3fn, jnp.finfo, jnp.iinfo)))\n"
        "print(np.int32 in {jnp.int32}, {np.float32: 1}[jnp.float32], np.dtype('int8') == jnp.int8, jnp.int8 == np.int16)\n"
        "class StepType(jnp.int8):\n    FIRST = jnp.int8(0)\n    LAST = jnp.int8(2)\n"
        "print(StepType.LAST, StepType(1).dtype, StepType.dtype, issubclass(StepType, jnp.int8))\n"
        "print(isinstance(np.int8(1), jnp.int8), isinstance(np.int16(1), jnp.int8), jnp.int8.__name__, jnp.bool_.__name__)\n"
        "print(all(pickle.loads(pickle.dumps(t)) is t for t in (jnp.int8, jnp.bool_, jnp.uint, jnp.float4_e2m1fn)))\n"
        "print(isinstance(jnp.finfo('float32'), jnp.finfo), pickle.loads(pickle.dumps(jnp.iinfo('int8'))).max)\n"
        "print(np.zeros(1, jnp.float16).dtype, jnp.zeros(1, jnp.int4).dtype, np.dtype(jnp.bfloat16))"
    )
    assert result.splitlines() == [
        "True",
        "True 1 True False",
        "2 int8 int8 True",
        "True False int8 bool",
        "True",
        "True 127",
        "float16 int4 bfloat16",
    ]


def test_the_dictionary_of_a_module_has_its_names() -> None:
    result = output_of(
        "import jax, jax.numpy as jnp\nfrom jax import lax\n"
        "print('abs' in vars(jnp), len([n for n in vars(jnp) if n[0] != '_']) > 400, vars(jnp)['sin'] is jnp.sin, 'add' in vars(lax))\n"
        "print('jit' in vars(jax), vars(jax)['grad'] is jax.grad)\n"
        "import sys; print('jax.experimental.pallas' in sys.modules)\n"
        "names = {}\nexec('from jax.numpy import *', names); print('vander' in names)"
    )
    assert result.splitlines() == ["True True True True", "True True", "False", "True"]


def test_attributes_may_be_set_on_arrays() -> None:
    result = output_of(
        "import jax, jax.numpy as jnp\nx = jnp.ones(2)\nx.trainable = False\nprint(x.trainable, hasattr(x + 1, 'trainable'))\n"
        "try:\n    x.shape = (2, 1)\nexcept AttributeError:\n    print('shape is fixed')"
    )
    assert result.splitlines() == ["False False", "shape is fixed"]


@pytest.mark.parametrize("name", ["int8", "uint16", "float16", "float64", "complex64", "bool_"])
def test_hashes_of_dtypes_are_those_of_numpys_types(name: str) -> None:

    ours = getattr(jnp, name)
    assert ours == getattr(np, name) and hash(ours) == hash(getattr(np, name)) and len({ours, getattr(np, name)}) == 1


def test_devices_describe_their_memory_and_arrays() -> None:
    device = vf.devices("cpu")[0]
    x = jnp.ones(5)
    assert any(array is x for array in device.live_buffers()) and any(array is x for array in process.live_arrays())
    x.delete()
    assert not any(array is x for array in process.live_arrays())
    assert device.memory_stats()["bytes_in_use"] > 0
    assert device.client.platform == "cpu" and device in device.client.devices()
    assert device.memory().kind == device.default_memory().kind == "device" and device.addressable_memories()[0].device is device
    assert (device.host_id, device.local_hardware_id, device.task_id) == (0, device.id, 0)
    with pytest.raises(vf.errors.ArgumentError, match="alone"):
        device.memory("pinned_host")


def test_a_kind_of_memory_leaves_arrays_where_they_are() -> None:
    x = jnp.ones(2)
    assert vf.device_put(x, process.memory.Space.Device) is x
    assert vf.device_put({"x": x}, {"x": process.memory.Space.Host})["x"] is x


def test_jitted_functions_count_their_programs() -> None:
    double = vf.jit(lambda x: 2 * x)
    assert double._cache_size() == 0
    double(jnp.ones(2)), double(jnp.ones(3)), double(jnp.ones(2))
    assert double._cache_size() == 2


def test_shardings_and_meshes() -> None:
    mesh = vf.make_mesh((1,), ("a",))
    sharding = vf.NamedSharding(mesh, vf.P("a"))
    assert isinstance(vf.NamedSharding.mesh, property) and isinstance(vf.NamedSharding.spec, property)
    assert sharding.mesh is mesh and sharding.spec == vf.P("a") and sharding.replicated_axes == frozenset()
    assert sharding.update(spec=(None,)).replicated_axes == {"a"} and sharding.has_addressable_devices
    with pytest.raises(vf.errors.ArgumentTypeError, match="no"):
        sharding.update(nonsense=1)
    with pytest.raises(vf.errors.ShapeError):
        sharding.check_compatible_aval(())
    abstract = vf.sharding.AbstractMesh((2, 4), ("a", "b"))
    explicit = abstract.update_axis_types({"b": vf.sharding.AxisType.Explicit})
    assert (explicit.auto_axes, explicit.explicit_axes, explicit.manual_axes) == (("a",), ("b",), ())
    assert explicit.shape_tuple == (("a", 2), ("b", 4)) and abstract.update(axis_sizes=(2, 2)).size == 4
    for name in ("devices", "device_ids", "local_devices", "local_mesh", "is_multi_process"):
        with pytest.raises(vf.errors.ArgumentError, match="has no devices"):
            getattr(abstract, name)
    spec = vf.P("a", vf.P.UNCONSTRAINED)
    assert spec.names() == ["a"] and spec.count("a") == 1 and spec.index("a") == 0
    assert pickle.loads(pickle.dumps(spec)) == spec and repr(spec) == "P('a', UNCONSTRAINED)"
    assert repr(vf.P("a")) == "P('a',)" and repr(vf.P()) == "P()" and repr(vf.P("a", unreduced={"b"})) == "P('a', unreduced={'b'})"
    assert make_single_device_sharding("cpu").device_set == {vf.devices("cpu")[0]}


def test_types_that_are_declared_to_vmap() -> None:
    class Rows: ...

    class Spec: ...

    batching.register_vmappable(Rows, Spec, int, None, None, None)
    assert interpreters.vmappables[Rows] == (Spec, int) and interpreters.is_vmappable(Rows())
    with pytest.raises(vf.errors.ArgumentTypeError):
        vf.vmap(lambda x: x)(Rows())
    batching.unregister_vmappable(Rows)
    assert not interpreters.is_vmappable(Rows()) and Spec not in interpreters.spec_types
    batching.unregister_vmappable(Rows)


def test_parameters_that_jax_has() -> None:
    result = output_of(
        "import jax, jax.numpy as jnp\nfrom jax import lax\n"
        "print(jax.grad(lambda x: x * x, reduce_axes=())(3.0), jax.value_and_grad(lambda x: x * x, reduce_axes=())(3.0)[1])\n"
        "double = lambda x: 2 * x\n"
        "print(jax.vjp(double, 1.0, reduce_axes=())[1](1.0)[0], jax.linear_transpose(double, 1.0, reduce_axes=())(1.0)[0])\n"
        "for f in (jax.grad, jax.value_and_grad):\n"
        "    try:\n        f(double, reduce_axes=('i',))\n"
        "    except NotImplementedError as error:\n        print('lax.psum' in str(error))\n"
        "print(jax.tree.map_with_path(f=lambda path, v: v + 1, tree={'a': 1}), jax.tree.leaves_with_path(tree=[3])[0][1])\n"
        "print(round(float(lax.zeta(2.0, q=1.0)), 4), round(float(lax.polygamma(m=1.0, x=2.0)), 4), lax.nextafter(x1=1.0, x2=1.0))\n"
        "print(jnp.issubdtype(arg1='int8', arg2=jnp.integer))\n"
        "A = jnp.array([[4.0, 1, 0], [1, 3, 1], [0, 1, 2]])\n"
        "print(lax.linalg.schur(A, sort_eig_vals=False)[0].shape)\n"
        "print(jax.scipy.linalg.eigh(A, None, True, True, turbo=True, eigvals=(1, 2)).shape)\n"
        "v, w = lax.linalg.eigh(A, subset_by_index=(1, 3))\nprint(v.shape, jnp.allclose(A @ v, v * w, atol=1e-5))\n"
        "print(lax.reduce(jnp.arange(3), 0, lax.add, (0,), None), lax.full_like(jnp.ones(2), 1, None, None, None).shape)\n"
        "keys = jax.random.split(jax.random.key(0), 3)\n"
        "draw = lambda k, s: s * jax.random.normal(k, (2,))\n"
        "rows = jnp.vectorize(draw, signature='(),()->(n)')(keys, jnp.ones((4, 1)))\n"
        "print(rows.shape, jnp.array_equal(rows[2, 1], draw(keys[1], 1)), jnp.vectorize(lambda k: jax.random.uniform(k))(keys).shape)\n"
    )
    assert result.splitlines() == [
        "6.0 6.0", "2.0 2.0", "True", "True", "{'a': 2} 3", "1.6449 0.6449 1.0", "True", "(3, 3)", "(2,)", "(3, 2) True", "3 (2,)",
        "(4, 3, 2) True (3,)",
    ]  # fmt: skip


def test_static_arguments_of_checkpoints_by_name() -> None:
    calls = []

    def power(x, *, n: int, kind: str = "a"):
        calls.append((n, kind))
        return x**n

    remade = vf.checkpoint(power, static_argnames=("n", "kind"))
    assert vf.grad(lambda x: remade(x, n=3))(jnp.float32(2)) == 12 and remade(jnp.float32(2), n=2) == 4
    assert vf.grad(lambda x: remade(x, n=2, kind="b"))(jnp.float32(3)) == 6 and {(3, "a"), (2, "b")} <= {*calls}
    assert vf.grad(lambda x: vf.checkpoint(power, static_argnames="n")(x, n=2))(jnp.float32(3)) == 6


def test_elements_in_one_dimension() -> None:
    np.testing.assert_array_equal(jnp.arange(6).reshape(2, 3).flat, np.arange(6))
    assert [int(n) for n in jnp.eye(2).flat] == [1, 0, 0, 1]


def test_impossible_arguments_of_decompositions() -> None:
    for subset in ((1, 1), (-1, 2), (0, 4)):
        with pytest.raises(vf.errors.ArgumentError, match="subset_by_index"):
            vf.lax.linalg.eigh(jnp.eye(3), subset_by_index=subset)
    with pytest.raises(vf.errors.UnsupportedError, match="sorted"):
        vf.lax.linalg.schur(jnp.eye(3), sort_eig_vals=True)
    with pytest.raises(vf.errors.UnsupportedError, match="empty"):
        vf.vjp(lambda x: x, 1.0, reduce_axes=("i",))


def test_printed_values_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="volta_fn.debug"):
        vf.jit(lambda x: vf.debug.log("x = {}", x))(jnp.int32(3))
    assert "x = 3" in caplog.text
    with pytest.raises(vf.errors.ArgumentError, match="does not use"):
        vf.debug.log("x", 1)
    assert str(vf.debug.DebugEffect()) == "Debug" and str(vf.debug.OrderedDebugEffect()) == "OrderedDebug"


def test_options_and_metadata_of_profiles(tmp_path) -> None:
    assert not vf.profiler.TraceAnnotation.is_enabled()
    with vf.profiler.trace(tmp_path, profiler_options=vf.profiler.ProfileOptions(python_tracer_level=0)) as recording:
        assert vf.profiler.TraceAnnotation.is_enabled()
        with vf.profiler.TraceAnnotation("a", n=1) as _, vf.profiler.TraceAnnotation("b") as _:
            pass
        annotation = vf.profiler.TraceAnnotation("c", n=1)
        with annotation:
            annotation.set_metadata(m=2)
    assert annotation.metadata == {"n": 1, "m": 2} and "c" in [event.name for event in recording.events]


def test_functions_are_mapped_along_one_axis_of_a_mesh() -> None:
    mesh = vf.sharding.Mesh(np.full(2, vf.devices("cpu")[0]), "rows")
    x = jnp.arange(8.0).reshape(2, 4)
    with mesh:
        total = vf.sharding.smap(lambda x, y: vf.lax.psum(x.sum(), "rows") + y, in_axes=(1, None), out_axes=None, axis_name="rows")
        np.testing.assert_array_equal(total(x, jnp.float32(1)), 29)
        np.testing.assert_array_equal(vf.sharding.smap(in_axes=0, out_axes=1, axis_name="rows")(lambda x: x.T)(x), np.asarray(x).T)
        with pytest.raises(vf.errors.ArgumentTypeError, match="dimension"):
            vf.sharding.smap(lambda x: x, in_axes="rows", out_axes=0, axis_name="rows")
    with pytest.raises(vf.errors.ArgumentTypeError, match="one axis"):
        vf.sharding.smap(lambda x: x, in_axes=0, out_axes=0, axis_name=("rows",))


def test_scalars_that_a_traced_function_creates_are_traced() -> None:
    result = output_of(
        "import jax, jax.numpy as jnp\n"
        "def kinds():\n    return [isinstance(x, jax.core.Tracer) for x in (jnp.ones(()), jnp.zeros(()), jnp.full((), 2.0), jnp.ones(3))]\n"
        "seen = []\n"
        "jax.jit(lambda: seen.extend(kinds()))()\n"
        "print(seen, kinds())\n"
        "from jax._src.lib import jaxlib_extension_version\n"
        "print(jaxlib_extension_version >= 0)\n"
        "sharding = jnp.ones(3).sharding\n"
        "print(sharding._addressable_device_assignment == tuple(sharding.device_set) == sharding._device_assignment)"
    )
    assert result.splitlines() == ["[True, True, True, True] [False, False, False, False]", "True", "True"]


def test_numbers_with_a_dtype_and_words_of_keys_by_private_names() -> None:
    program = """
import pickle, jax, jax.numpy as jnp, numpy as np
from jax._src.literals import TypedComplex, TypedFloat, TypedInt
from jax._src.random import threefry2x32

for x in (TypedInt(-5, np.dtype("int8")), TypedFloat(-2.5, np.dtype("float16")), TypedComplex(1 + 2j, np.dtype("complex64"))):
    a, copy, sums = jnp.asarray(x), pickle.loads(pickle.dumps(x)), [jnp.ones(2, dtype) + x for dtype in ("float16", "int8")]
    print(repr(x), str(x), x + 1, type(x + 1).__name__, type(copy) is type(x), copy == x, copy.dtype, x.aval.shape, x.aval.weak_type)
    print(a.item(), a.dtype, a.weak_type, [total.dtype for total in sums], jnp.add(x, jnp.int16(3)).dtype)
key = threefry2x32.threefry_seed(jnp.int32(-7))
print(key, threefry2x32.threefry_split(key, (2,)), threefry2x32.threefry_fold_in(key, jnp.int32(9)))
print([threefry2x32.threefry_random_bits(key, width, (3,)).tolist() for width in (8, 16, 32)], threefry2x32.threefry_prng_impl.key_shape)
"""
    assert output_of(program) == output_of_jax(program)


def test_equations_have_jaxs_parameters_and_order_of_operands() -> None:
    program = """
import jax, jax.numpy as jnp
from jax import lax

v, i = jnp.ones(4), jnp.arange(4)
for f, x in [
    (lambda x: lax.top_k(x, 2), v), (lambda x: lax.sort(x), v), (lambda x: lax.cumsum(x), v), (lambda x: lax.argmax(x, 0, "int32"), v),
    (lambda x: lax.reduce_max(x, (0,)), v), (lambda x: lax.pad(x, 0.0, [(1, 1, 0)]), v), (lambda x: lax.rev(x, (0,)), v),
    (lambda x: lax.slice(x, (1,), (3,)), v), (lambda x: lax.concatenate([x, x], 0), v), (lambda x: lax.integer_pow(x, 3), v),
    (lambda x: lax.linalg.tridiagonal(x), jnp.eye(3)),
]:
    print([(e.primitive.name, sorted(e.params)) for e in jax.make_jaxpr(f)(x).jaxpr.eqns])
jaxpr = jax.make_jaxpr(lambda x: jnp.clip(x, -1, 1))(i).jaxpr
while any("jaxpr" in e.params for e in jaxpr.eqns):
    jaxpr = jaxpr.eqns[0].params["jaxpr"].jaxpr
print([(e.primitive.name, [x.aval.shape for x in e.invars]) for e in jaxpr.eqns if e.primitive.name in ("min", "max")])
"""
    assert output_of(program) == output_of_jax(program)


def test_types_are_written_as_in_jax() -> None:
    program = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import jax, jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

mesh = jax.make_mesh((2,), ("X",), axis_types=(AxisType.Explicit,))
split = jax.device_put(jnp.ones((2, 4), "int8"), NamedSharding(mesh, PartitionSpec("X")))
for x in (jnp.ones((2, 3)), 1.0, jnp.arange(3, dtype="bfloat16"), True, jax.random.key(0), split, jnp.ones((0, 2)) > 0):
    aval = jax.typeof(x)
    print(aval, f"{aval}", str(aval), aval.str_short(), aval.str_short(True))
shapes = jax.make_jaxpr(lambda x: x + 1)(jnp.ones(3))
print(shapes.jaxpr.invars[0].aval, *shapes.out_avals)
print(" ".join(str(shapes).split()))
"""
    assert output_of(program) == output_of_jax(program)


def test_interpreters_of_jaxprs_find_jaxs_equations_and_parameters() -> None:
    program = """
import jax, jax.numpy as jnp

def index(x):
    return x[0] * x[1, 2], x[:, -1], x[1:, 0], x[0, :2]

def compute(x):
    y = jnp.exp(x).reshape(3, 2).astype(jnp.float16) @ jnp.broadcast_to(x[0], (2, 3))
    return jnp.sum(x * x, 0), y, x[:, jnp.array([2, 0])], x.at[jnp.array([1])].set(0.0)

names = {
    "reshape": "dimensions sharding", "exp": "accuracy", "convert_element_type": "sharding", "dot_general": "precision out_sharding",
    "broadcast_in_dim": "sharding", "reduce_sum": "out_sharding", "mul": "out_dtype", "gather": "indices_are_sorted unique_indices",
    "scatter": "indices_are_sorted update_jaxpr update_consts",
}
x = jnp.ones((2, 3))
print([(e.primitive.name, e.params.get("dimensions")) for e in jax.make_jaxpr(index)(x).eqns])
eqns = [(e.primitive.name, e.params) for e in jax.make_jaxpr(compute)(x).eqns]
print(sorted({(name, n, str(params[n])) for name, params in eqns for n in names.get(name, "").split()}))
try:
    jax.make_jaxpr(jnp.sin)(x).eqns[0].params["nonsense"]
except KeyError as error:
    print(error)
"""
    assert output_of(program) == output_of_jax(program)
