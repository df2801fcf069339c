"""Seconds of Keras's `fit`, its first epoch and later ones, beside JAX.

    python -m benchmarks.keras_fit [NAME ...] [--rounds N]

Needs Keras 3 and JAX. Each run is a process of its own on one core, with an empty cache of programs; the frameworks take turns. Times are
seconds of the processor, the least of all rounds; a later epoch is the fastest one of a run.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

NAMES = ("cnn", "transformer", "recurrent")


def cnn(keras: Any) -> tuple[Any, Any, Any, dict[str, Any]]:
    """Return a convolutional network with BatchNorm and dropout, and its data."""
    layers = keras.layers
    model = keras.Sequential([
        layers.Conv2D(16, 3, padding="same"), layers.BatchNormalization(), layers.Activation("relu"), layers.MaxPooling2D(),
        layers.Conv2D(32, 3, padding="same"), layers.BatchNormalization(), layers.Activation("relu"), layers.MaxPooling2D(),
        layers.Flatten(), layers.Dropout(0.3), layers.Dense(10, activation="softmax"),
    ])  # fmt: skip
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    draw = np.random.default_rng(0)
    return model, draw.normal(size=(512, 16, 16, 3)).astype("float32"), draw.integers(0, 10, 512), {"epochs": 6, "batch_size": 64}


def transformer(keras: Any) -> tuple[Any, Any, Any, dict[str, Any]]:
    """Return two blocks of attention with a layer of the user's, AdamW and clipping."""
    layers = keras.layers

    class Positions(layers.Layer):  # type: ignore[name-defined]  # of a module that is not installed here
        """Add a learned vector to each position."""

        def build(self, shape: Any) -> None:
            self.table = self.add_weight(shape=(shape[1], shape[2]), initializer="normal")

        def call(self, x: Any) -> Any:
            return x + self.table

    inputs = keras.Input((32,), dtype="int32")
    x = Positions()(layers.Embedding(200, 64)(inputs))
    for _ in range(2):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 16, dropout=0.1)(x, x))
        x = layers.LayerNormalization()(x + layers.Dense(64)(layers.Dense(128, activation="gelu")(x)))
    model = keras.Model(inputs, layers.Dense(2)(layers.GlobalAveragePooling1D()(x)))
    rate = keras.optimizers.schedules.CosineDecay(1e-3, 100)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(rate, clipnorm=1.0), loss, metrics=["accuracy"])
    tokens = np.random.default_rng(0).integers(0, 200, (512, 32))
    labels = (tokens[:, 0] > 100).astype("int32")
    early = keras.callbacks.EarlyStopping(patience=10)
    return model, tokens, labels, {"epochs": 5, "batch_size": 32, "validation_split": 0.25, "callbacks": [early]}


def recurrent(keras: Any) -> tuple[Any, Any, Any, dict[str, Any]]:
    """Return a bidirectional LSTM and a GRU, trained by RMSprop."""
    layers = keras.layers
    model = keras.Sequential([layers.Bidirectional(layers.LSTM(32, return_sequences=True)), layers.GRU(32), layers.Dense(1)])
    model.compile("rmsprop", "mse")
    series = np.random.default_rng(0).normal(size=(256, 24, 8)).astype("float32")
    return model, series, series.sum((1, 2))[:, None], {"epochs": 5, "batch_size": 32}


BUILDERS: dict[str, Callable[[Any], tuple[Any, Any, Any, dict[str, Any]]]] = dict(zip(NAMES, (cnn, transformer, recurrent), strict=True))


def run_inside(name: str) -> None:
    """Train one model in this process; print its times and losses as JSON."""
    keras: Any = importlib.import_module("keras")  # by volta_fn or by JAX, as the process was started

    keras.utils.set_random_seed(0)
    model, inputs, targets, options = BUILDERS[name](keras)
    times: list[float] = []

    class Clock(keras.callbacks.Callback):
        """Takes the time of each epoch; that of the first has all that compiles."""

        def __init__(self) -> None:
            super().__init__()
            self.begun = time.process_time()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            now = time.process_time()
            times.append(now - self.begun)
            self.begun = now

    options["callbacks"] = [*options.get("callbacks", []), Clock()]
    history = model.fit(inputs, targets, verbose=0, **options)
    print(json.dumps({"first": times[0], "later": min(times[1:]), "losses": history.history["loss"]}))


def measured(name: str, framework: str) -> dict[str, Any]:
    """Run a process of one framework on one core, with an empty cache."""
    start = ["-m", "volta_fn.jax"] if framework == "volta_fn" else []
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "VOLTA_CACHE_DIR": cache, "TF_CPP_MIN_LOG_LEVEL": "3"}
        command = [sys.executable, *start, __file__, "--inside", name]
        core = {max(os.sched_getaffinity(0))}
        result = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True, preexec_fn=lambda: os.sched_setaffinity(0, core)
        )
    row: dict[str, Any] = json.loads(result.stdout.strip().splitlines()[-1])
    return row


def main() -> None:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(description="Time Keras's fit here and under JAX.")
    parser.add_argument("names", nargs="*", default=[*NAMES])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        run_inside(options.inside)
        return
    print(f"{'':12} first epoch, s: JAX / here, ratio    later epochs, s: JAX / here, ratio    largest difference of losses")
    for name in options.names:
        rows: dict[str, list[dict[str, Any]]] = {"jax": [], "volta_fn": []}
        for _ in range(options.rounds):
            for framework, runs in rows.items():
                runs.append(measured(name, framework))
        first, later = ([min(run[key] for run in rows[f]) for f in rows] for key in ("first", "later"))
        gap = np.abs(np.subtract(rows["jax"][0]["losses"], rows["volta_fn"][0]["losses"])).max()
        times = (
            f"{first[0]:8.2f} / {first[1]:.2f}, {first[1] / first[0]:.2f}      {later[0]:8.3f} / {later[1]:.3f}, {later[1] / later[0]:.2f}"
        )
        print(f"{name:12} {times}      {gap:.1g}", flush=True)


if __name__ == "__main__":
    main()
