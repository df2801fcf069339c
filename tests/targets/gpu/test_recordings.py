"""Recordings of command lists: which blocks of memory calls use depends on what the caller keeps, and results do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import lax
from volta_fn import numpy as jnp
from volta_fn.core.devices.device import Device
from volta_fn.targets.gpu.program import CommandList

GPU = vf.devices("gpu")[0]
SIZE = 300


def step(x: Any, y: Any, repeat: Any) -> tuple[Any, Any, Any]:
    """Return results of several dispatches each, one of them in a loop of dispatches if it is to `repeat`."""
    summed = jnp.cumsum(x) / SIZE
    looped = repeat(x, y)
    return summed * 0.5 + y, (summed @ y) / SIZE + jnp.sort(x)[::3], looped


def repeated(x: Any, y: Any) -> Any:
    return lax.fori_loop(0, 3, lambda i, c: c * 0.5 + jnp.cumsum(y) / SIZE, x)


def expected(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    looped = x
    for _ in range(3):
        looped = looped * 0.5 + np.cumsum(y) / SIZE
    summed = np.cumsum(x) / SIZE
    return summed * 0.5 + y, summed @ y / SIZE + np.sort(x)[::3], looped


def check_history(device: Device, seed: int, *, donates: bool) -> None:
    """Call a program with arrays that earlier calls gave, some of them twice, while others are kept or dropped at random."""
    rng = np.random.default_rng(seed)
    program = vf.jit(lambda x, y: step(x, y, repeated), donate_argnums=0 if donates else ())
    with vf.default_device(device):
        alive = [(jnp.asarray(x), x.astype(np.float64)) for x in rng.normal(size=(3, SIZE)).astype(np.float32)]
        for _ in range(40):
            (x, x_value), (y, y_value) = (alive[rng.integers(len(alive))] for _ in range(2))
            if donates:
                x = x + 0  # which the program may overwrite
            results = zip(program(x, y), expected(x_value, y_value), strict=True)
            for result, value in results:
                if value.shape == (SIZE,) and rng.random() < 0.4:
                    alive.append((result, value))
                else:
                    np.testing.assert_allclose(np.asarray(result), value, rtol=2e-4, atol=2e-4)
            while len(alive) > rng.integers(3, 9):
                del alive[rng.integers(len(alive))]
        for array, value in alive:
            np.testing.assert_allclose(np.asarray(array), value, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("donates", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_results_do_not_depend_on_blocks(seed: int, donates: bool) -> None:
    check_history(GPU, seed, donates=donates)


def test_a_loop_that_keeps_a_result_of_each_step_changes_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the dispatches that use another block are resolved again."""
    changes: list[tuple[int, int] | None] = []
    adapt = CommandList.adapt_recording

    def counted(self: CommandList, key: Any, resolve: Any) -> Any:
        resolved: list[Any] = []

        def noted(run: Any) -> Any:
            resolved.append(run)
            return resolve(run)

        recording = adapt(self, key, noted)
        changes.append((len(resolved), len(recording.steps)) if recording else None)
        return recording

    monkeypatch.setattr(CommandList, "adapt_recording", counted)
    with vf.default_device(GPU):
        update = vf.jit(lambda w: (w * 0.5 + 1, jnp.sum(jnp.cumsum(jnp.sort(w)))), donate_argnums=0)
        w, losses = jnp.ones(SIZE), []
        for _ in range(12):
            w, loss = update(w)
            losses.append(loss)
        values = [float(loss) for loss in losses]
    weights, losses_by_numpy = np.ones(SIZE), []
    for _ in range(12):
        losses_by_numpy.append(np.sum(np.cumsum(weights)))
        weights = weights * 0.5 + 1
    np.testing.assert_allclose(values, losses_by_numpy, rtol=1e-4)
    assert changes.count(None) <= 3
    assert all(some < all_ for some, all_ in filter(None, changes))
