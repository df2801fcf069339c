"""Hints to XLA change no value, and its options have JAX's names."""

from __future__ import annotations

import jax.experimental.custom_partitioning as theirs
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn.compat import refused
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError


def test_marked_functions_compute_the_same() -> None:
    decorators = [
        refused.compute_on("device_host"),
        refused.compute_on2(compute_type="device", out_memory_spaces=None),
        refused.scheduling_group("a"),
        refused.xla_metadata_call(a=1),
        refused.fused(out_spaces=None),
    ]
    for decorate in decorators:

        @decorate
        def double(x):
            """Double."""
            return 2 * x

        assert vf.jit(double)(jnp.float32(3)) == 6 and vf.grad(double)(1.0) == 2 and double.__name__ == "double"
    assert refused.compute_on2(lambda x: x, compute_type="gpu_stream:1", out_memory_spaces=None)(2) == 2
    assert refused.xla_metadata_call(lambda x: x)(2) == 2
    assert refused.control_dep(1, 2) is None and refused.schedule([1, 2]) is None


def test_unknown_processors_are_refused() -> None:
    with pytest.raises(ArgumentError, match="device_host"), refused.compute_on("nonsense"):
        pass
    with pytest.raises(ArgumentTypeError, match="string"):
        refused.compute_on2(compute_type=1, out_memory_spaces=None)


def test_arrays_that_are_split_alike_have_one_shape() -> None:
    with pytest.raises(ShapeError, match="one shape"):
        refused.shard_alike(jnp.ones(2), jnp.ones(3))


def test_functions_with_rules_of_partition() -> None:
    @refused.custom_partitioning
    def scale(x, factor=2.0):
        return x * factor

    with pytest.raises(ArgumentError, match="def_partition"):
        scale(1.0)

    @scale.def_partition
    def rule(mesh, arguments, results): ...

    assert scale.partition is rule and scale(3.0, factor=3.0) == 9 and vf.jit(scale)(jnp.float32(2)) == 4
    assert scale.__name__ == "scale"


def test_rules_of_sharding_hold_the_names_that_jax_holds() -> None:
    arguments = (("a", "b"),), (("a",),)
    ours = refused.SdyShardingRule(*[tuple(refused.ArrayMapping(*m) for m in side) for side in arguments], reduction_factors=("b",))
    real = theirs.SdyShardingRule(*[tuple(theirs.ArrayMapping(*m) for m in side) for side in arguments], reduction_factors=("b",))
    assert ours.operand_mappings == real.operand_mappings and ours.result_mappings == real.result_mappings
    assert ours.reduction_factors == real.reduction_factors and refused.BATCHING == theirs.BATCHING
    assert refused.CompoundFactor("a", "b") == ("a", "b")
    with pytest.raises(ArgumentError, match="two factors"):
        refused.CompoundFactor("a")


def test_attributes_for_xla_have_no_effect() -> None:
    metadata = vf.experimental.xla_metadata
    with metadata.fuse_limit():
        assert float(metadata.must_fuse_call("block")(jnp.sin)(0.0)) == 0.0
    assert metadata.xla_metadata_call(abs, label="a") is abs and metadata.xla_metadata_call(label="a")(abs) is abs
    assert metadata.xla_metadata_call2(abs, {"label": 1}, ad_metadata="drop") is abs
    with pytest.raises(ArgumentTypeError, match="label must be a string"):
        metadata.xla_metadata_call(abs, label=[])


def test_options_of_other_compilers_have_jaxs_values() -> None:
    assert refused.CompilerEffortLevel("O1") is refused.CompilerEffortLevel.O1 is refused.CompilerEffortLevel(19)
    with pytest.raises(ValueError, match="O9"):
        refused.CompilerEffortLevel("O9")
    assert refused.Inline("auto") is refused.Inline.AUTO and {*refused.UnreducedKind.__members__} == {"sum", "max", "min"}
