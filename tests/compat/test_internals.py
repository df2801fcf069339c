"""What libraries use of JAX's private modules: promotion, the parts of `vectorize`, the process and its mesh."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import pytest
from jax._src import api, util
from jax._src.lax.control_flow import loops
from jax._src.scipy import signal

import volta_fn as vf
from volta_fn import numpy as vnp
from volta_fn.compat import internals
from volta_fn.errors import ArgumentTypeError, ShapeError
from volta_fn.numpy import joining
from volta_fn.sharding import make_mesh


@pytest.mark.parametrize(
    ("dtype", "inexact", "complex_"),
    [
        ("int32", "float32", "complex64"),
        ("int64", "float64", "complex128"),
        ("bfloat16", "bfloat16", "complex64"),
        ("float64", "float64", "complex128"),
        ("complex64",) * 3,
    ],
)
def test_dtypes_that_functions_compute_in(dtype: str, inexact: str, complex_: str) -> None:
    assert internals.to_inexact_dtype(dtype) == vf.dtypes.as_dtype(inexact)
    assert internals.to_complex_dtype(dtype) == complex_
    x = vnp.ones(2, dtype)
    assert [v.dtype.name for v in internals.promote_dtypes_inexact(x)] == [inexact]
    assert [v.dtype.name for v in internals.promote_dtypes_complex(x, vnp.int8(1))] == [complex_] * 2


def test_arrays_promote_to_one_dtype() -> None:
    x, y = internals.promote_dtypes(vnp.arange(3, dtype="int8"), vnp.float32(0.5))
    assert x.dtype == y.dtype == np.float32
    np.testing.assert_array_equal(x + y, [0.5, 1.5, 2.5])


def test_excluded_arguments_are_fixed() -> None:
    function = lambda a, b, c, *, d, e: (a, b, c, d, e)
    partial, args, kwargs = internals._apply_excluded(function, {1, "e"}, (1, 2, 3), {"d": 4, "e": 5})
    assert (args, kwargs) == ([1, 3], {"d": 4})
    assert partial(10, 30, d=40) == (10, 2, 30, 40, 5)


def test_core_dimensions_have_one_size() -> None:
    a, b = np.ones((4, 1, 2, 3)), np.ones((5, 3))
    assert internals._parse_input_dimensions((a, b), [("m", "n"), ("n",)]) == ((4, 5), {"m": 2, "n": 3})
    with pytest.raises(ShapeError, match="'n' has sizes 3 and 2"):
        internals._parse_input_dimensions((a, np.ones(2)), [("m", "n"), ("n",)])
    with pytest.raises(ShapeError, match="lacks some of the core dimensions"):
        internals._parse_input_dimensions((np.ones(3),), [("m", "n")])
    with pytest.raises(ShapeError, match="2 arguments are expected, got 1"):
        internals._parse_input_dimensions((a,), [("m",), ("n",)])


def test_results_have_their_core_dimensions() -> None:
    checked = lambda result: internals._check_output_dims(lambda: result, {"n": 3}, [("n",), ()])()
    assert checked((np.ones(3), np.float32(1)))[0].shape == (3,)
    for wrong, message in [(np.ones(3), "2 results"), ((np.ones(2), 1.0), "'n' has sizes 3 and 2"), ((np.ones(3), np.ones(1)), "shape")]:
        with pytest.raises(ShapeError, match=message):
            checked(wrong)


def test_the_process_and_its_mesh() -> None:
    assert internals.global_state.process_id == 0 and internals.global_state.num_processes == 1
    assert internals.global_state.client is None
    assert internals.thread_resources.env.physical_mesh.empty
    with make_mesh((1,), ("x",)) as mesh:
        assert internals.thread_resources.env.physical_mesh is mesh
    vnp.ones(1).block_until_ready()
    assert internals.backends_are_initialized()


def test_values_and_primitives_are_as_they_are() -> None:
    x = vnp.ones(3)
    assert internals.full_lower(x) is x
    np.testing.assert_array_equal(internals.apply_primitive(vf.make_jaxpr(vf.lax.neg)(x).jaxpr.eqns[0].primitive, x), [-1.0] * 3)
    internals.lowerable_effects.add_type(int)
    assert int in internals.lowerable_effects and int not in internals.remat_allowed_effects
    internals.lowerable_effects.remove(int)


def test_slices_of_references_are_nodes_of_their_arrays() -> None:
    part = internals.Slice(vnp.int32(2), 3)
    leaves, structure = vf.tree.flatten(part)
    assert leaves == [2] and vf.tree.unflatten(structure, leaves) == part
    assert vf.tree.leaves(internals.Slice(0, 4, 2)) == []
    assert vf.jit(lambda s: s.start * s.size)(part) == 6


def test_frames_are_added_up() -> None:
    x = np.random.default_rng(0).standard_normal((2, 5, 4)).astype("float32")
    for step in (1, 2, 3, 4):
        np.testing.assert_allclose(internals._overlap_and_add(x, step), signal._overlap_and_add(x, step), atol=1e-6)
    with pytest.raises(ShapeError, match="frames"):
        internals._overlap_and_add(x[0, 0], 2)


def test_products_follow_a_path() -> None:
    rng = np.random.default_rng(0)
    operands = [rng.standard_normal(s).astype("float32") for s in ((2, 3), (3, 4), (4, 5))]
    path = [((1, 0), frozenset("j"), "jk,ij->ik"), ((1, 0), frozenset("k"), "ik,kl->il")]
    np.testing.assert_allclose(internals._einsum(operands, path, None, None), operands[0] @ operands[1] @ operands[2], rtol=1e-5)
    wide = internals._einsum([x.astype("bfloat16") for x in map(vnp.asarray, operands)], path, None, "float32")
    assert wide.dtype == "float32"


def test_steps_of_jacobians_are_those_of_jax() -> None:
    shaped = {"a": np.ones((2, 2), np.float32), "b": np.float32(1)}
    rows = np.arange(15, dtype=np.float32).reshape(3, 5)
    theirs = api._std_basis({name: jax.numpy.asarray(x) for name, x in shaped.items()})
    for name, x in internals._std_basis(shaped).items():
        np.testing.assert_array_equal(x, theirs[name])
    for ours, reference, array in [
        (internals._jacfwd_unravel, api._jacfwd_unravel, rows),
        (internals._jacrev_unravel, api._jacrev_unravel, rows.T),
        (internals._jacrev_unravel, api._jacrev_unravel, rows.T * np.complex64(1 + 2j)),
    ]:
        theirs = reference(shaped, jax.numpy.float32(1), jax.numpy.asarray(array))
        for name, x in ours(shaped, vnp.float32(1), vnp.asarray(array)).items():
            assert x.dtype == theirs[name].dtype
            np.testing.assert_array_equal(x, theirs[name])


@pytest.mark.parametrize("size", [0, 1, 3, 5, 7])
def test_batches_and_their_rest_are_those_of_jax(size: int) -> None:
    x = {"a": np.arange(10).reshape(5, 2), "b": np.arange(5)}
    theirs = loops._batch_and_remainder(jax.tree.map(jax.numpy.asarray, x), size)
    for ours, reference in zip(internals._batch_and_remainder(vf.tree.map(vnp.asarray, x), size), theirs, strict=True):
        assert (ours is None) == (reference is None)
        for a, b in zip(vf.tree.leaves(ours), jax.tree.leaves(reference), strict=True):
            np.testing.assert_array_equal(a, b)
    assert internals._batch_and_remainder({}, 2) == loops._batch_and_remainder({}, 2) == ({}, None)


@pytest.mark.parametrize("dtype", ["float32", "complex64", "int32", "bool"])
@pytest.mark.parametrize("holomorphic", [False, True])
def test_the_dtypes_of_jacobians_are_those_that_jax_takes(dtype: str, holomorphic: bool) -> None:
    def accepts(check: Any, *arguments: Any) -> bool:
        try:
            check(holomorphic, *arguments)
        except TypeError:
            return False
        return True

    x = np.ones(2, dtype)
    for name in ("_check_input_dtype_jacfwd", "_check_output_dtype_jacfwd", "_check_output_dtype_jacrev"):
        assert accepts(getattr(internals, name), vnp.asarray(x)) == accepts(getattr(api, name), jax.numpy.asarray(x)), name
    for allow_int in (False, True):
        ours, theirs = internals._check_input_dtype_jacrev, api._check_input_dtype_jacrev
        assert accepts(ours, allow_int, vnp.asarray(x)) == accepts(theirs, allow_int, jax.numpy.asarray(x)), allow_int
    assert internals._dtype(x) == api._dtype(x)


def test_joiners_and_updates_are_classes() -> None:
    class Columns(joining.CClass):
        def __getitem__(self, key: Any) -> Any:
            return super().__getitem__(key) + 1

    np.testing.assert_array_equal(Columns()[np.arange(2), np.arange(2)], np.c_[:2, :2] + 1)
    assert type(vnp.r_) is joining.RClass and type(vnp.c_) is joining.CClass


def test_functions_are_wrapped_with_formats() -> None:
    def original(x: int) -> int:
        """Return x."""
        return x

    for wraps in (internals.wraps, util.wraps):
        plain = wraps(original)(lambda x: x + 1)
        assert (plain.__name__, plain.__doc__, plain(1), plain.__wrapped__) == ("original", "Return x.", 2, original)
        named = wraps(original, "d_{fun}", "{fun} {times} times: {doc}", times=3)(lambda x: x)
        assert (named.__name__, named.__doc__) == ("d_original", "original 3 times: Return x.")
        assert wraps(functools.partial(original), docstr="{doc}")(lambda x: x)(3) == 3


def test_private_functions_of_lax_and_of_promotion() -> None:
    assert internals._const(np.float16(1), 2).dtype == np.float16 and internals._const(vnp.ones(2, "int8"), 2).dtype == np.int8
    assert type(internals._const(1.0, 2)) is float and type(internals._const(1, 2)) is int
    assert [x.dtype.name for x in internals.promote_args("f", np.int8(1), np.float32(2))] == ["float32"] * 2
    assert [x.dtype.name for x in internals.promote_args_inexact("f", 1, 2)] == ["float32"] * 2
    with pytest.raises(ArgumentTypeError, match="^f: argument 1"):
        internals.promote_args("f", "text")


def test_private_functions_of_linear_algebra_and_of_lowering_rules() -> None:
    from jax._src.lax import linalg

    x = np.array([[1, 2 + 1j], [3j, 4]], np.complex64)
    np.testing.assert_array_equal(internals._H(x), linalg._H(jax.numpy.asarray(x)))
    np.testing.assert_array_equal(internals.symmetrize(vnp.asarray(x)), linalg.symmetrize(jax.numpy.asarray(x)))
    for dtype in ("float32", "complex64"):
        aval = vf.typeof(vnp.ones((2, 1), dtype))
        nans = internals._nan_like_hlo(None, aval)
        assert nans.dtype == dtype and nans.shape == (2, 1) and np.isnan(nans).all() and internals._complex_basetype(dtype) == "float32"
        zeros = internals.full_like_aval(None, 0, aval)
        ok = internals.compare_hlo(zeros, zeros, "EQ", "FLOAT")
        wide = internals.broadcast_in_dim(None, vnp.arange(2), vf.ShapeDtypeStruct((2, 3), "int32"), broadcast_dimensions=range(1))
        assert ok.all() and wide.tolist() == [[0] * 3, [1] * 3]
        chosen = internals._broadcasting_select_hlo(None, wide > 0, None, vnp.ones((2, 3), dtype), None, nans, aval)
        assert np.isnan(chosen[0]).all() and (chosen[1] == 1).all()


def test_shapes_and_arrays_of_arguments() -> None:
    numpy_util = jax._src.numpy.util
    for arguments in ((np.ones((2, 3)), np.ones(3), np.ones(())), (np.ones((2, 3)), np.ones(()))):
        shapes = [x.shape for x in internals.promote_shapes("f", *arguments)]
        assert shapes == [np.shape(x) for x in numpy_util.promote_shapes("f", *arguments)]
    assert internals.ensure_arraylike("f", 1.0).shape == () and len(internals.ensure_arraylike("f", 1.0, 2)) == 2
    internals.check_arraylike("f", 1, np.ones(2))
    with pytest.raises(TypeError):
        internals.check_arraylike("f", "text")


def test_effects_are_of_a_primitive() -> None:
    effect = internals.GenericEffect("write")
    assert effect == internals.GenericEffect("write") != internals.GenericEffect("read") and effect.prim == "write"
    internals.lowerable_effects.add_type(internals.GenericEffect)
    assert internals.GenericEffect in internals.lowerable_effects
