"""What a backward pass keeps, and passes as functions."""

from __future__ import annotations

from typing import Any

import jax
import jax.ad_checkpoint
import jax.numpy as jnp
import numpy as np
import pytest

import volta_fn as vf

X = np.float32([1.0, 2.0, 3.0])


def network(ja: Any, xp: Any, policy: Any = None) -> Any:
    def f(w: Any, x: Any) -> Any:
        y = ja.ad_checkpoint.checkpoint_name(xp.sin(w @ x), "y")
        return xp.sum(xp.sin(w @ y))

    return f if policy is None else ja.checkpoint(f, policy=policy)


def test_saved_values_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    w = np.ones((3, 3), np.float32)
    vf.ad_checkpoint.print_saved_residuals(network(vf, vf.numpy), w, X)
    printed = capsys.readouterr().out
    assert "f32[3,3] from the argument w" in printed
    assert "f32[3] output of cos from" in printed
    assert "test_saved_residuals.py" in printed
    assert "f)" in printed
    jax.ad_checkpoint.print_saved_residuals(network(jax, jnp), w, X)
    count = lambda text: sorted(row.split(" from ")[0] for row in text.splitlines() if "output of" in row or "named" in row)
    assert len(count(printed)) == len(count(capsys.readouterr().out))


@pytest.mark.parametrize(
    ("policy", "saved_names"),
    [
        (vf.checkpoint_policies.nothing_saveable, []),
        (vf.checkpoint_policies.dots_saveable, ["output of dot_general"] * 2),
        (
            vf.checkpoint_policies.save_and_offload_only_these_names(
                names_which_can_be_saved=["y"], names_which_can_be_offloaded=["z"], offload_src="device", offload_dst="pinned_host"
            ),
            ["named 'y'"],
        ),
        (vf.checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host"), ["output of dot_general"] * 2),
    ],
    ids=["nothing", "products", "names", "products offloaded"],
)
def test_policies_decide(policy: Any, saved_names: list[str]) -> None:
    saved = vf.ad_checkpoint.saved_residuals(network(vf, vf.numpy, policy), np.ones((3, 3), np.float32), X)
    assert sorted(origin.split(" from ")[0] for _, origin in saved if "argument" not in origin) == saved_names


@pytest.mark.parametrize("jitted", [False, True])
def test_passes_are_jaxs(jitted: bool) -> None:
    results = []
    for ja in (vf, jax):
        fwd, bwd = ja.fwd_and_bwd(lambda x, y, k: (x * y * k, x + y), argnums=(0, 2), has_aux=True, jitted=jitted)
        value, residuals, aux = fwd(X, X + 1, np.float32(2.0))
        results.append([np.asarray(v) for v in (value, aux, *bwd(residuals, X), *bwd(residuals, 2 * X))])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
