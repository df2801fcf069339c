"""Helpers of JAX's private modules that compute with Python's values, beside JAX's own."""

from __future__ import annotations

import functools
import gc
import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from volta_fn import dtypes
from volta_fn import jax as ours
from volta_fn.compat import internals, private_functions
from volta_fn.core.aval import ShapedArray
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, GradientError, InconclusiveDimensionOperation, TreeError

#: Expressions by the private module whose helpers they call, with `jnp`, `np` and `tree` of the same library.
EXPRESSIONS = {
    "jax._src.util": """
        HashablePartial(pow, 2)(3)
        HashableFunction(len, closure=1) == 3
        HashableFunction(lambda x: x, closure=(1,)).closure
        HashableWrapper([1]) == HashableWrapper([1])
        HashableWrapper((1,)) == HashableWrapper((1,))
        Hashable((1, 2)) == Hashable((1, 2)), hash(Hashable(3))
        Unhashable([1]) == Unhashable([1]), Unhashable([1]) == Unhashable([2])
        subs_list2([0, None, None], [None, 1, None], "ab", "cd", "z")
        pprint_bytes(1500), pprint_bytes(0), pprint_bytes(3.2e9), pprint_bytes(1e18), pprint_bytes(7)
        fun_qual_name(partial(np.linalg.norm, 2)), fun_qual_name(SimpleNamespace().__init__)
        maybe_named_axis(2, lambda i: i + 1, lambda n: n), maybe_named_axis("x", lambda i: i + 1, lambda n: n)
        partial(pow, 2)(3)
    """,
    "jax._src.core": """
        definitely_equal(1, 1), definitely_equal(1, 2)
        definitely_equal_one_of_dim(1, [2, 1]), definitely_equal_one_of_dim(1, [])
        definitely_equal_shape((1, 2), (1, 2)), definitely_equal_shape((1, 2), (1,)), definitely_equal_shape((1, 2), (1, 3))
        divide_shape_sizes((4, 3), (2, 3)), divide_shape_sizes((0, 3), (0,)), divide_shape_sizes((), ())
        is_empty_shape((0,)), is_empty_shape(()), is_dim(3), is_constant_shape((3, 4))
        dilate_dim(3, 2), dilate_dim(0, 2), dilate_dim(3, 1), stride_dim(7, 3, 2), stride_dim(2, 3, 2)
        DebugInfo("jit", "f at a.py:3", ("x", "y"), None).func_name
        DebugInfo("jit", "f at a.py:3", ("x", "y"), None).func_filename
        DebugInfo("jit", "f at a.py:3", ("x", "y"), None).func_lineno
        DebugInfo("jit", "f at a.py:3", ("x", "y"), None).filter_arg_names([True, False])
        DebugInfo("jit", "f at a.py:3", ("x", "y"), None).safe_arg_names(2)
        DebugInfo("jit", "f at a.py:3", None, None).safe_arg_names(2), DebugInfo("jit", "f", None, None).safe_result_paths(1)
        DebugInfo("jit", "f at a.py:3", None, ("a", "b")).filter_result_paths([False, True])
        DebugInfo("jit", "f at a.py:3", None, lambda: ("a",)).resolve_result_paths().result_paths
        DebugInfo("jit", "f at a.py:3", None, None).replace_func_name("g").func_src_info
        DebugInfo("jit", "f at a.py:3", ("x",), ("a",)).with_unknown_names().arg_names
    """,
    "jax._src.dtypes": """
        to_numeric_dtype(bool), to_numeric_dtype("float16")
        to_floating_dtype("complex64"), to_floating_dtype("int32"), to_floating_dtype("bfloat16")
        scalar_type_to_dtype(int), scalar_type_to_dtype(bool), scalar_type_to_dtype(float, 3.0), coerce_to_array(3).dtype
        coerce_to_array(np.float32(1)).dtype, coerce_to_array(1, "int8").dtype
        is_weakly_typed(3.0), is_weakly_typed(True), is_weakly_typed(jnp.asarray(2.0)), is_weakly_typed(jnp.ones(2))
        is_weakly_typed_scalar(True), is_weakly_typed_scalar(jnp.asarray(2.0)), is_weakly_typed_scalar("x")
        check_valid_dtype(np.dtype("float32"))
        safe_to_cast("int16", "float32"), safe_to_cast("float32", "int16"), safe_to_cast("int32", "float32"), safe_to_cast("int8", "int8")
        lattice_result_type(1, jnp.ones(2)), lattice_result_type(1, 2.0)
        result_type(1, 2.0, return_weak_type_flag=True), result_type(jnp.ones(1), 2.0, return_weak_type_flag=True)
        [short_dtype_name(np.dtype(name)) for name in ("uint8", "complex64", "bool", "float16", "int64")]
        {kind: default() for kind, default in default_types.items()}
        default_int_dtype(), default_uint_dtype(), default_float_dtype(), default_complex_dtype()
        check_and_canonicalize_user_dtype(float), check_and_canonicalize_user_dtype("int16")
        issubdtype(a=np.float32, b=np.floating)
        [python_scalar_types_to_dtypes[kind] for kind in (bool, int, float, complex)], python_scalar_types >= {bool, int, float, complex}
    """,
    "jax._src.tree_util": """
        broadcast_prefix((1, 2), ({"a": 3, "b": 4}, 5)), broadcast_prefix(None, None)
        tree_leaves_checked(tree.structure((1, 2)), (3, 4))
        treedef_is_strict_leaf(tree.structure(1)), treedef_is_strict_leaf(tree.structure((1,))), treedef_is_strict_leaf(tree.structure(()))
        list(flatten_one_level(tree={"b": 1, "a": 2})[0])
    """,
    "jax._src.api_util": """
        resolve_kwargs(lambda x, y=2: 0, (), {"x": 1}), resolve_kwargs(partial(pow, 2), (3,), {})
        fun_sourceinfo(partial(np.linalg.norm)).split(" at ")[0]
        fun_signature(lambda x, *, y: 0), fun_signature(dict)
        is_hashable((1,)), is_hashable([1]), api_hook(3, "tag"), PytreeLeaf()
        donation_vector((0,), (), tree.structure((1, 2)), kws=False)
        donation_vector((0,), ("k",), tree.structure(((1, (2, 3)), {"k": 1})))
    """,
    "jax._src.lax.utils": """
        int_dtype_for_shape((3, 2**40), signed=True), int_dtype_for_shape((3, 2**31), signed=False), int_dtype_for_dim(3, signed=True)
        dtype_to_string("float32"), dtype_to_string(np.dtype("int8")), input_dtype(np.ones(2, "int8")), input_dtype(1, out_dtype="int16")
    """,
    "jax._src.numpy.fft": """
        _fft_norm(jnp.array([4, 5]), "ifft", "ortho"), _fft_norm(jnp.array([4, 5]), "fft", "ortho")
        _fft_norm(jnp.array([4, 5]), "fft", "forward"), _fft_norm(jnp.array([4, 5]), "irfft", "forward")
        _fft_norm(jnp.array([4, 5]), "fft", "backward")
    """,
    "jax._src.interpreters.batching": "make_iota(3)",
    "jax._src.lax.lax": "_eq_meet(jnp.float32(1), jnp.int8(1)), _eq_meet(jnp.float32(16777217), jnp.int32(16777217))",
    "jax._src.test_util": "is_device_tpu(5, 'p')",
    "jax._src.core.": "_sds_aval_mapping(ShapeDtypeStruct((2,), 'float32')).shape",
    "jaxlib.plugin_support": "import_from_plugin('cuda', '_solver')",
    "jax.sharding": """
        sorted(ManualAxisType(varying=frozenset("x")).update(unreduced=frozenset("y")).to_ct_mat().reduced)
        ManualAxisType().empty, ManualAxisType(varying=frozenset("x")).empty
    """,
}  # fmt: skip
ROWS = [(module, row.strip()) for module, rows in EXPRESSIONS.items() for row in rows.splitlines() if row.strip()]


def evaluate(expression: str, module: str, root: str) -> str:
    load = lambda name: importlib.import_module(root + name)
    path = module.removesuffix(".")
    names = [name for name in dir(load(path)) if not name.startswith("__")]
    values = {name: getattr(load(path), name) for name in names if name in expression}
    tools = {"partial": functools.partial, "SimpleNamespace": SimpleNamespace, "ShapeDtypeStruct": load("jax").ShapeDtypeStruct}
    return repr(eval(expression, tools | {"np": np, "jnp": load("jax.numpy"), "tree": load("jax.tree")} | values))


@pytest.mark.parametrize(("module", "expression"), ROWS)
def test_private_functions_give_what_those_of_jax_give(module: str, expression: str, jax_mode: None) -> None:
    pytest.importorskip("jax")
    assert evaluate(expression, module, "volta_fn.") == evaluate(expression, module, "")


@pytest.fixture
def jax_mode() -> Iterator[None]:
    dtypes.set_width(32)
    yield
    dtypes.set_width(None)


def test_nodes_come_after_their_parents() -> None:
    util = pytest.importorskip("jax._src.util")
    first = SimpleNamespace(name="first", parents=[])
    second, third = SimpleNamespace(name="second", parents=[first]), SimpleNamespace(name="third", parents=[first])
    last = SimpleNamespace(name="last", parents=[third, second, third])
    for sort in (private_functions.toposort, util.toposort):
        nodes = sort([last, second])
        position = {node.name: i for i, node in enumerate(nodes)}
        assert len(nodes) == 4 and all(position[p.name] < position[node.name] for node in nodes for p in node.parents)


@pytest.mark.parametrize("root", ["volta_fn.", ""])
@pytest.mark.parametrize(
    ("xs", "ys", "options", "close"),
    [
        ({"a": np.float32([1, 2])}, {"a": np.float32([1, 2 + 2e-6])}, {}, True),
        ([np.float32(1)], [np.float32(1 + 5e-6)], {}, False),
        (np.float64([1]), np.float32([1 + 1e-6]), {}, True),
        (np.float32([1]), np.float32([1.01]), {"rtol": {"float32": 0.1}}, True),
        (np.float32([1]), np.float32([1.01]), {"rtol": {"float64": 0.1}}, False),
        (np.float32([1, 2]), np.float32([1.1, 2.1]), {"atol": 0.06}, True),
        (np.int32([1]), np.int32([2]), {}, False),
        (np.ones(2), np.ones((2, 1)), {}, False),
        (np.ones(2, dtypes.bfloat16), np.ones(2, dtypes.bfloat16) * dtypes.bfloat16(1.015625), {}, True),
        (np.zeros(2, dtypes.float0), np.zeros(2, dtypes.float0), {}, True),
    ],
)
def test_arrays_are_close_where_they_are_in_jax(root: str, xs: Any, ys: Any, options: dict[str, Any], close: bool) -> None:
    check_close = pytest.importorskip(f"{root}jax._src.public_test_util").check_close
    if close:
        check_close(xs, ys, **options)
    else:
        with pytest.raises(AssertionError):
            check_close(xs, ys, **options)


@pytest.mark.filterwarnings("ignore:jax.experimental.pjit:DeprecationWarning")
@pytest.mark.parametrize("root", ["volta_fn.", ""])
def test_parameters_may_be_positional_as_in_jax(root: str) -> None:
    pytest.importorskip("jax")
    load = lambda name: importlib.import_module(root + name)
    jax, jnp = load("jax"), load("jax.numpy")
    P, values = jax.sharding.PartitionSpec, jnp.arange(6)
    assert load("jax.experimental.pjit").pjit(lambda x, n: x * n, None, None, 1)(values, 3).tolist() == [0, 3, 6, 9, 12, 15]
    assert [values[jax.ds(*args)].tolist() for args in ((None,), (2,), (1, 3), (1, 2, 3))] == [list(range(6)), [0, 1], [1, 2, 3], [1, 4]]
    assert P("x").update(("y", None)) == P("y", None) and P("x").update() == P("x")
    derivatives = load("jax.experimental.jet").jet(jnp.sin, (0.0,), ([1.0, 0.0, 0.0],), False)[1]
    np.testing.assert_allclose(derivatives, [1.0, 0.0, -1 / 6], rtol=1e-6)
    assert len(load("jax.experimental.random").stateful_rng(0).spawn(n_children=2)) == 2


class Key:
    """An object that weak references may be of."""


def counts(cached: Any) -> tuple[int, int, int]:
    info = cached.cache_info()
    return info.hits, info.misses, info.currsize


def test_results_are_kept_while_the_first_argument_lives() -> None:
    calls: list[Any] = []

    @private_functions.weakref_lru_cache
    def f(key: Key, number: int, *, scale: int = 1) -> int:
        calls.append(number)
        return number * scale

    key, other = Key(), Key()
    assert [f(key, 2), f(key, 2), f(key, 2, scale=3), f(other, 2), f(key, 3)] == [2, 2, 6, 2, 3]
    assert calls == [2, 2, 2, 3] and counts(f) == (1, 4, 4)
    del other
    gc.collect()
    assert counts(f)[2] == 3
    f.evict_weakref(key)
    assert counts(f)[2] == 0 and f(key, 2) == 2 and len(calls) == 5
    f.cache_clear()
    assert counts(f) == (0, 0, 0) and f.__name__ == "f"


@pytest.mark.parametrize("name", ["volta_fn.compat.private_functions", "jax._src.util"])
def test_the_cache_has_a_size(name: str) -> None:
    module = pytest.importorskip(name)
    calls: list[int] = []
    f = module.weakref_lru_cache(maxsize=2)(lambda key, number: calls.append(number) or number)
    key = Key()
    assert [f(key, n) for n in (1, 2, 1, 3, 1, 2)] == [1, 2, 1, 3, 1, 2] and calls == [1, 2, 3, 2]


def test_collections_and_classes() -> None:
    elements: private_functions.OrderedSet[int] = private_functions.OrderedSet()
    elements.update([3, 1, 3])
    assert list(elements) == [3, 1] and len(elements) == 2 and 1 in elements and 2 not in elements
    total: list[int] = []
    private_functions.foreach(lambda x, y: total.append(x * y), [1, 2], [3, 4])
    assert total == [3, 8]
    with pytest.raises(ValueError, match="shorter"):
        private_functions.foreach(lambda x, y: None, [1, 2], [3])
    assert (
        not private_functions.is_hashable(private_functions.Unhashable(1))
        and {private_functions.HashableWrapper([1])}
        and hash(private_functions.HashablePartial(evaluate, 1, a=2))
    )
    assert {private_functions.HashableFunction(evaluate, 1), private_functions.HashableFunction(evaluate, 1)} == {
        private_functions.HashableFunction(evaluate, 1)
    }

    class Base(private_functions.StrictABC):
        pass

    with pytest.raises(NotImplementedError, match="virtual"):
        Base.register(int)

    @private_functions.immutable
    class Constant:
        pass

    with pytest.raises(AttributeError, match="cannot assign"):
        Constant().value = 1  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="cannot"):
        del Constant().value  # type: ignore[attr-defined]


def test_bad_values_raise_typed_errors() -> None:
    with pytest.raises(InconclusiveDimensionOperation, match=r"\(4, 3\) is no multiple of that of \(5,\): 2 are left"):
        private_functions.divide_shape_sizes((4, 3), (5,))
    with pytest.raises(InconclusiveDimensionOperation, match="12 are left"):
        private_functions.divide_shape_sizes((4, 3), (0,))
    with pytest.raises(OverflowError, match="too large to convert to int32"):
        private_functions.scalar_type_to_dtype(int, 1 << 40)
    with pytest.raises(DTypeError, match="no dtype of arrays"):
        private_functions.check_valid_dtype(np.dtype("U3"))
    with pytest.raises(ArgumentError, match="full: a dtype is needed, got None"):
        private_functions.check_and_canonicalize_user_dtype(None, "full")
    with pytest.raises(ArgumentTypeError, match="could not be resolved to positions: y"):
        private_functions.resolve_kwargs(lambda x, *, y=2: 0, (1,), {"y": 1})
    with pytest.raises(TreeError, match="must have the structure"):
        private_functions.tree_leaves_checked(ours.tree.structure((1, 2)), (1, (2, 3)))
    with pytest.raises(ArgumentError, match="fft: norm must be"):
        private_functions._fft_norm(ours.numpy.array([4]), "fft", "none")
    for function, kind in ((bool, ours.errors.TracerBoolConversionError), (float, ours.errors.ConcretizationTypeError)):
        error = private_functions.concretization_function_error(function, suggest_astype=True)
        with pytest.raises(kind, match=rf"{function.__name__}\(\) needs a number"):
            error(None, "x")


def test_symbolic_sizes() -> None:
    n, m = ours.export.symbolic_shape("n, m")
    assert (
        private_functions.is_dim(n)
        and not private_functions.is_constant_shape((1, n))
        and private_functions.definitely_equal(n, n)
        and not private_functions.definitely_equal(n, m)
    )
    assert not private_functions.is_empty_shape((n,)) and str(private_functions.dilate_dim(n, 1)) == "n"
    assert private_functions.int_dtype_for_shape((n,), signed=False) == private_functions.default_uint_dtype()
    assert ours.jit(lambda x: private_functions.definitely_equal(x, 3) + x)(2) == 2


def test_programs_are_described() -> None:
    closed = ours.make_jaxpr(lambda x, y: ours.numpy.sin(x) + y)(1.0, 2.0)
    jaxpr, first = closed.jaxpr, closed.jaxpr.eqns[0]
    last = private_functions.last_used(jaxpr)
    assert [last[v] for v in (*jaxpr.invars, jaxpr.outvars[0])] == [first, jaxpr.eqns[1], None]
    values = dict.fromkeys(jaxpr.invars)
    private_functions.clean_up_dead_vars(first, values, last)
    assert list(values) == jaxpr.invars[1:]
    assert jaxpr.replace(debug_info=None, effects=set()).eqns == jaxpr.eqns and jaxpr.debug_info.func_name == "unknown"
    assert closed.map_jaxpr(lambda program: program.replace(eqns=program.eqns)).debug_info == jaxpr.debug_info
    assert first.replace(source_info=None, ctx=None, effects=None).primitive is first.primitive
    assert private_functions.jaxpr_const_args(jaxpr) == []
    types = internals.abstract_eval_fun(ours.numpy.sin, ours.core.ShapedArray((2,), np.dtype("float32")))
    assert [aval.shape for aval in types] == [(2,)]


def test_functions_by_the_parameters_of_jax() -> None:
    jnp, special = ours.numpy, ours.scipy.special
    assert jnp.finfo(dtype=jnp.float32).bits == 32 and jnp.trunc(x=1.5) == 1 and jnp.fmax(x1=1.0, x2=2.0) == 2 and jnp.gcd(x1=4, x2=6) == 2
    assert special.owens_t(h=0.0, a=1.0) == pytest.approx(0.125) and special.erf(x=0.0) == 0 and ours.nn.sigmoid(x=0.0) == 0.5
    mesh = ours.make_mesh((1,), ("x",))
    shards = importlib.import_module("volta_fn.jax.experimental.shard_map")
    spec = ours.sharding.PartitionSpec("x")
    assert shards.shard_map(lambda x: 2 * x, mesh, (spec,), spec, check_rep=False)(jnp.arange(3)).tolist() == [0, 2, 4]
    matrix = np.arange(12.0).reshape(4, 3) % 5
    u, s, vh = ours.lax.linalg.svd(matrix, full_matrices=False, subset_by_index=(0, 2))
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    np.testing.assert_allclose(s, values[:2], rtol=1e-5)
    np.testing.assert_allclose((u * s) @ vh, (left[:, :2] * values[:2]) @ right[:2], atol=1e-5)
    for subset, full in (((0, 2), True), ((2, 1), False), ((0, 4), False)):
        with pytest.raises(ArgumentError, match="svd: subset_by_index"):
            ours.lax.linalg.svd(matrix, full_matrices=full, subset_by_index=subset)
    effects = internals.EffectTypes()
    effects.add_type(int)
    assert effects.contains(3) and effects.filter_in([3, "x"]) == [3] and effects.filter_not_in([3, "x"]) == ["x"]
    assert internals.xla_primitive_callable(ours.lax.sin_p)(0.0) == 0 and internals.p2tz(jnp.ones(2)).aval.shape == (2,)


def test_rules_of_derivatives_are_checked() -> None:
    jnp, check = ours.numpy, importlib.import_module("volta_fn.jax.test_util")

    def function(tree: Any) -> Any:
        return {"sum": jnp.sin(tree["x"]) * tree["n"], "count": tree["n"]}

    args = ({"x": jnp.array([0.5, 1.0]), "n": jnp.array([1, 2])},)
    check.check_jvp(function, functools.partial(ours.jvp, function), args)
    check.check_vjp(function, functools.partial(ours.vjp, function), args)
    wrong = lambda x: 1.1 * jnp.sin(x)
    with pytest.raises(AssertionError, match="rule of sin: check_grads: f_jvp: result: the derivative is"):
        check.check_jvp(jnp.sin, functools.partial(ours.jvp, wrong), (0.5,), err_msg="rule of sin")
    with pytest.raises(AssertionError, match=r"check_grads: f_vjp: argument \[0\]: the derivative is"):
        check.check_vjp(jnp.sin, functools.partial(ours.vjp, wrong), (0.5,))
    with pytest.raises(GradientError, match="no argument"):
        check.check_jvp(jnp.sin, functools.partial(ours.jvp, jnp.sin), (1,))


def test_zeros_of_types_and_values() -> None:
    assert internals.p2tz(np.ones(3, "float32")).aval == internals.a2tz(ShapedArray((3,), np.dtype("float32"))).aval
    assert internals.p2cz(np.ones(3, "int32")).aval.dtype == dtypes.float0
