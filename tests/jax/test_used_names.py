"""The names of JAX that released libraries use are here, as `tools/jax_uses.py` collected them from 315 wheels."""

from __future__ import annotations

import ast

import pytest

from tools.jax_uses import USED, resolves, used

NAMES = USED.read_text().split()

#: What is left: steps of JAX's tracing, which Oryx repeats, and attributes of refused names.
ABSENT = """
jax._src.clusters.ClusterEnv._cluster_types jax._src.clusters.SlurmCluster.is_env_present
jax._src.image.scale.ResizeMethod.from_string jax._src.interpreters.pxla._cached_lowering_to_hlo.cache_clear
jax._src.interpreters.pxla._cached_lowering_to_hlo.cache_info
jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_kernel.BlockSizes.get_default
jax.experimental.pallas.tpu.BufferedRef.create jax.experimental.pallas.tpu.BufferedRef.input
jax.experimental.pallas.tpu.BufferedRef.input_output jax.experimental.pallas.tpu.BufferedRef.output
jax.extend.mlir.dialects.stablehlo.ComparisonTypeAttr.get jax.extend.mlir.ir.DenseI64ArrayAttr.get jax.extend.mlir.ir.DictAttr.get
jax.extend.mlir.ir.FunctionType.get jax.extend.mlir.ir.StringAttr.get jax.extend.mlir.ir.TupleType.get_tuple
jax.profiler.ProfileData.from_serialized_xspace
"""


def test_used_names_are_here() -> None:
    assert len(NAMES) > 1900
    assert [name for name in NAMES if not resolves(name, "volta_fn.jax")] == sorted(ABSENT.split())


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import jax.numpy as jnp\njnp.linalg.norm(x)", {"jax.numpy", "jax.numpy.linalg", "jax.numpy.linalg.norm"}),
        ("import jax.lax\njax.lax.scan", {"jax.lax", "jax.lax.scan"}),
        ("from jax._src import core as c\nc.Jaxpr; d.e", {"jax._src.core", "jax._src.core.Jaxpr"}),
        ("from numpy import jax\njax.x", set()),
    ],
)
def test_uses_are_names_with_their_attributes(source: str, names: set[str]) -> None:
    assert set(used(ast.parse(source))) == names
