"""Splash attention beside JAX's masks and its reference."""

from __future__ import annotations

import importlib
import itertools
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.experimental.pallas.test_ops import assert_alike, normal
from volta_fn.errors import ArgumentError, GradientError, ShapeError, UnsupportedError
from volta_fn.experimental.pallas import splash
from volta_fn.experimental.pallas.ops import SegmentIds
from volta_fn.sharding import Mesh, NamedSharding, PartitionSpec

SHAPES = [(8, 8), (4, 10), (12, 5)]


def peer(module: str) -> Any:
    pytest.importorskip("jax")
    return importlib.import_module(f"jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_{module}")


@pytest.mark.parametrize("shape", SHAPES)
def test_masks_are_those_of_jax(shape: tuple[int, int]) -> None:
    theirs = peer("mask")
    calls = [("FullMask", ()), ("CausalMask", (0,)), ("CausalMask", (-2,)), ("CausalMask", (3,)), ("ChunkedCausalMask", (3,))]
    calls += [("LocalMask", (window, offset)) for window in itertools.product((None, 0, 2), repeat=2) for offset in (0, 1)]
    blocks = [np.s_[:, :], np.s_[1:3, 2:5], np.s_[:2, 3:]]
    for name, arguments in calls:
        a, b = [getattr(module, name)(shape, *arguments) for module in (splash, theirs)]
        assert a.shape == b.shape
        for block in blocks:
            assert a[block].dtype == bool
            np.testing.assert_array_equal(a[block], b[block])
        assert a == getattr(splash, name)(shape, *arguments) and hash(a) == hash(getattr(splash, name)(shape, *arguments))
    np.testing.assert_array_equal(splash.make_random_mask(shape, 0.3, 7), theirs.make_random_mask(shape, 0.3, 7))
    np.testing.assert_array_equal(splash.make_causal_mask(shape, 1), theirs.make_causal_mask(shape, 1))
    local = [module.make_local_attention_mask(shape, (1, None), offset=2) for module in (splash, theirs)]
    np.testing.assert_array_equal(*local)
    np.testing.assert_array_equal(splash.make_chunk_attention_mask(shape, 3), theirs.make_chunk_attention_mask(shape, 3))


def test_masks_that_are_combined() -> None:
    causal, full, array = splash.CausalMask((4, 4)), splash.FullMask((4, 4)), splash.NumpyMask(np.eye(4, dtype=bool)[::-1])
    np.testing.assert_array_equal((causal | array)[:, :], causal[:, :] | array[:, :])
    np.testing.assert_array_equal((causal & array)[1:, :], (causal[:, :] & array[:, :])[1:])
    heads = splash.MultiHeadMask([causal, full, causal & array])
    assert heads.shape == (3, 4, 4) and heads[:2, :, 1:3].shape == (2, 4, 2)
    np.testing.assert_array_equal(heads[0, :, :], causal[:, :])
    assert len({causal, splash.CausalMask((4, 4)), full, array, splash.NumpyMask(array.array.copy()), causal & array}) == 4
    assert causal != splash.CausalMask((4, 4), 1) and heads == splash.MultiHeadMask((causal, full, causal & array))


def test_masks_of_other_functions() -> None:
    def is_sink(rows: Any, columns: Any) -> Any:
        return np.broadcast_to(columns < 2, (rows.shape[0], columns.shape[1]))

    masks = [module(shape=(6, 5), mask_function=is_sink) for module in (splash.ComputableMask, peer("mask")._ComputableMask)]
    assert masks[0].shape == masks[1].shape == (6, 5)
    np.testing.assert_array_equal(masks[0].q_sequence, masks[1].q_sequence)
    for block in (np.s_[:, :], np.s_[1:4, 1:]):
        np.testing.assert_array_equal(masks[0][block], masks[1][block])
    assert masks[0] == splash.ComputableMask((6, 5), is_sink) != splash.ComputableMask((6, 5), lambda rows, columns: columns < 2)
    ours, theirs = splash.CausalMask((6, 5), 1), peer("mask").CausalMask((6, 5), 1)
    positions = np.arange(6)[:, None], np.arange(5)[None]
    np.testing.assert_array_equal(ours.mask_function(*positions), theirs.mask_function(*positions))
    np.testing.assert_array_equal((ours | masks[0])[:, :], (theirs | masks[1])[:, :])


def test_masks_that_are_refused() -> None:
    causal = splash.CausalMask((4, 4))
    for error, call in [
        (ShapeError, lambda: causal | splash.FullMask((4, 5))),
        (ShapeError, lambda: splash.MultiHeadMask([causal, splash.FullMask((4, 5))])),
        (ArgumentError, lambda: splash.MultiHeadMask([])),
        (ArgumentError, lambda: splash.MultiHeadMask([splash.MultiHeadMask([causal])])),
        (ArgumentError, lambda: splash.NumpyMask(np.ones((2, 2)))),
        (ArgumentError, lambda: splash.FullMask([4, 4])),  # type: ignore[arg-type]
        (ArgumentError, lambda: splash.ChunkedCausalMask((4, 4), 0)),
        (ArgumentError, lambda: splash.CausalMask((4, 4), shard_count=3)),
        (UnsupportedError, lambda: bool(causal)),
        (UnsupportedError, lambda: causal[0]),
        (UnsupportedError, lambda: splash.MultiHeadMask([causal])[0]),
        (UnsupportedError, lambda: splash.Mask().shape),
        (UnsupportedError, lambda: splash.Mask()[0]),
        (ShapeError, lambda: splash.make_splash_mha_single_device(causal)),
        (ArgumentError, lambda: splash.SplashBlockSizes(128, 128, block_q_dq=128, use_fused_bwd_kernel=True)),
    ]:
        with pytest.raises(error):
            call()


@pytest.mark.parametrize(("widths", "soft_cap", "with_sinks"), [((8, 8), None, False), ((8, 5), 3.0, True), ((4, 6), None, True)])
def test_attention(widths: tuple[int, int], soft_cap: float | None, with_sinks: bool) -> None:
    theirs = peer("kernel")
    q, k, v = normal(4, 10, widths[0]), normal(2, 10, widths[0], seed=1), normal(2, 10, widths[1], seed=2)
    masks = [splash.CausalMask((10, 10)), splash.LocalMask((10, 10), (2, 3), 0), splash.FullMask((10, 10)), splash.CausalMask((10, 10), 2)]
    mask = splash.MultiHeadMask(masks)
    ids = np.array([0] * 6 + [1] * 4, np.int32)
    sinks = normal(4, seed=3) if with_sinks else None
    expected = theirs.make_masked_mha_reference(mask[:, :, :])(
        q, k, v, theirs.SegmentIds(ids, ids), sinks, save_residuals=True, attn_logits_soft_cap=soft_cap
    )
    options = {"attn_logits_soft_cap": soft_cap, "block_sizes": splash.SplashBlockSizes.get_default()}
    arrays = [vnp.asarray(x) for x in (q, k, v)]
    more = [SegmentIds(vnp.asarray(ids), vnp.asarray(ids)), None if sinks is None else vnp.asarray(sinks)]
    for each in (mask, mask[:, :, :], vnp.asarray(mask[:, :, :])):
        kernel = splash.make_splash_mha_single_device(each, save_residuals=True, **options)
        assert_alike(vf.jit(kernel)(*arrays, *more), expected)
    plain = splash.make_splash_mha_single_device(mask, **options)
    assert_alike(plain(*arrays, *more), expected[0])
    assert plain(*[x.astype("bfloat16") for x in arrays]).dtype == "bfloat16"
    reference = splash.make_masked_mha_reference(mask)
    assert_alike(reference(*arrays, *more, attn_logits_soft_cap=soft_cap), expected[0])
    one = splash.attention_reference(
        mask[0, :, :], q[0], k[0], v[0], more[0], None if sinks is None else sinks[0], attn_logits_soft_cap=soft_cap
    )
    assert_alike(one, expected[0][0])


def test_attention_of_one_group_and_gradients() -> None:
    q, k, v = [vnp.asarray(normal(*shape, seed=i)) for i, shape in enumerate([(2, 5, 3), (5, 3), (5, 3)])]
    mask = splash.MultiHeadMask([splash.CausalMask((5, 5))] * 2)
    kernel = splash.make_splash_mqa_single_device(mask)
    many = splash.make_splash_mha_single_device(mask)
    np.testing.assert_allclose(kernel(q, k, v), many(q, k[None], v[None]), rtol=1e-6)
    sinks = vnp.array([0.3, -1.0])
    vf.test_util.check_grads(lambda *x: kernel(*x[:3], None, x[3]), (q, k, v, sinks), order=1, modes=["rev"])
    with pytest.raises(GradientError, match="return_residuals"):
        residuals = splash.make_splash_mqa_single_device(mask, save_residuals=True)
        vf.grad(lambda q: residuals(q, k, v)[0].sum())(q)


def test_a_kernel_is_a_tree() -> None:
    kernel = splash.make_splash_mha(splash.MultiHeadMask([splash.CausalMask((4, 4))] * 2), head_shards=1, q_seq_shards=1)
    (mask,), structure = vf.tree.flatten(kernel)
    assert mask.shape == (2, 4, 4)
    x = vnp.asarray(normal(2, 4, 3))
    outside = vf.jit(lambda kernel, x: kernel(x, x, x))(kernel, x)
    np.testing.assert_array_equal(outside, vf.tree.unflatten(structure, [mask])(x, x, x))
    mesh = Mesh(np.array(vf.devices()[:1]).reshape(1, 1), ("heads", "queries"))
    spec = kernel.manual_sharding_spec(NamedSharding(mesh, PartitionSpec("heads", "queries")))
    assert vf.tree.leaves(spec, is_leaf=lambda x: isinstance(x, PartitionSpec)) == [PartitionSpec("heads", "queries", None)]
