"""Forecast a series with an LSTM, and draw the forecast.

    python examples/time_series.py

The series is synthetic: a sum of three sines whose periods have no common multiple, and noise. The LSTM learns to predict each next value
from the previous ones. Then it continues the series, with each prediction as its next input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import common
import numpy as np

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import data, lax, nn, optim, random

NOISE = 0.05


class Forecaster(nn.Module):
    """Predicts each next value of a series, as a difference from the last one."""

    lstm: nn.LSTM
    out: nn.Linear

    @classmethod
    def init(cls, key: vf.Array, hidden: int) -> Forecaster:
        """Create a forecaster with `hidden` units."""
        first, second = random.split(key)
        return cls(nn.LSTM.init(first, 1, hidden), nn.Linear.init(second, hidden, 1))

    def __call__(self, series: vf.Array, carry: Any = None) -> tuple[vf.Array, Any]:
        """Return predictions (N, T) after every value of series (N, T), and the carry."""
        hidden, carry = self.lstm(series[..., None], carry)
        return series + self.out(hidden)[..., 0], carry

    @vf.jit(static_argnums=2)
    def forecast(self, past: vf.Array, steps: int) -> vf.Array:
        """Return the next `steps` values after the past, shape (steps,)."""

        def step(state: Any, _: None) -> tuple[Any, vf.Array]:
            value, carry = state
            following, carry = self(value, carry)
            return (following, carry), value[0, 0]

        predictions, carry = self(past[None])
        return lax.scan(step, (predictions[:, -1:], carry), None, length=steps)[1]


def series(length: int, seed: int) -> np.ndarray:
    """Generate the series."""
    t = np.arange(length)
    waves = np.sin(2 * np.pi * t / 25) + 0.6 * np.sin(2 * np.pi * t / 61.8) + 0.4 * np.sin(2 * np.pi * t / 11.3)
    return (waves + NOISE * np.random.default_rng(seed).normal(size=length)).astype(np.float32)


def train(past: np.ndarray, *, window: int, steps: int, seed: int) -> Forecaster:
    """Train a forecaster on all windows of the past.

    The first quarter of a window, where the carry is still uninformed, has no loss.
    """
    model_key, shuffle_key = random.split(random.key(seed))
    rows = np.lib.stride_tricks.sliding_window_view(past, window + 1)
    loader = data.DataLoader(data.ArrayDataset(rows), 32, shuffle=True, key=shuffle_key, drop_last=True)
    model = Forecaster.init(model_key, 48)
    optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.adam(optim.cosine_onecycle_schedule(steps, 1e-2)))
    moments = optimizer.init(model)

    def loss(model: Forecaster, rows: vf.Array) -> vf.Array:
        predictions, _ = model(rows[:, :-1])
        return nn.losses.mse_loss(predictions[:, window // 4 :], rows[:, 1 + window // 4 :])

    @vf.jit
    def step(model: Forecaster, moments: Any, rows: vf.Array) -> tuple[Forecaster, Any, vf.Array]:
        value, grads = vf.value_and_grad(loss)(model, rows)
        updates, moments = optimizer.update(grads, moments, model)
        return optim.apply_updates(model, updates), moments, value

    bar = common.epochs(loader, -(-steps // len(loader)))
    for number, batch in enumerate(bar):
        model, moments, value = step(model, moments, batch)
        if number % 10 == 0:
            bar.report(f"error {float(value) ** 0.5:.4f}, of which noise {NOISE}")
    return model


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Train, draw the forecast, and return its errors and those of the last value.

    They are root mean squared errors one step ahead and many steps ahead.
    """
    options = common.arguments(__doc__, argv)
    observed, ahead = 1500, 100
    values = series(observed + ahead, options.seed)
    window, steps = (50, 135) if options.quick else (100, 880)
    model = train(values[:observed], window=window, steps=steps, seed=options.seed)
    forecast = np.asarray(model.forecast(jnp.asarray(values[observed - 200 : observed]), ahead))
    with common.plot(options.out / "time_series.png") as axes:
        axes.plot(np.arange(observed - 150, observed + ahead), values[observed - 150 :], color="gray", label="series")
        axes.plot(np.arange(observed, observed + ahead), forecast, label="forecast")
        axes.axvline(observed, linestyle=":", color="black")
    truth, before = values[observed:], values[observed - 1 : -1]
    following = np.asarray(model(jnp.asarray(values[None, observed - 201 : -1]))[0])[0, -ahead:]
    errors = {"next": distance(following, truth), "next_naive": distance(before, truth)}
    errors |= {"ahead": distance(forecast, truth), "ahead_naive": distance(before[0], truth)}
    print(f"error one step ahead {errors['next']:.3f}, of which noise {NOISE}; repeating the last value {errors['next_naive']:.3f}")
    print(f"error over {ahead} steps by itself {errors['ahead']:.3f}; repeating the last value {errors['ahead_naive']:.3f}")
    return errors


def distance(guess: np.ndarray, truth: np.ndarray) -> float:
    """Return the root mean squared error."""
    return float(np.sqrt(np.mean((guess - truth) ** 2)))


if __name__ == "__main__":
    main()
