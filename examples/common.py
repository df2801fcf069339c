"""Code that the examples share: command line, digits, epochs, plots."""

from __future__ import annotations

import argparse
import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import data


def arguments(description: str | None, argv: Sequence[str] | None = None, **extra: dict[str, Any]) -> argparse.Namespace:
    """Parse the command line: options of every example, and `extra` ones.

    `extra` holds the arguments of `add_argument` by name.
    """
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a small version, done in seconds")
    parser.add_argument("--data", type=Path, help="the folder with the data; default: what ships with scikit-learn or Python")
    parser.add_argument("--out", type=Path, default=Path("results"), help="the folder for files that are written (default: results)")
    parser.add_argument("--seed", type=int, default=0, help="of everything random (default 0)")
    for name, options in extra.items():
        parser.add_argument(f"--{name.replace('_', '-')}", **options)
    return parser.parse_args(argv)


def digits(folder: Path | None) -> tuple[data.Dataset, data.Dataset]:
    """Return datasets of digits and labels for training and for validation.

    Images are float32 of shape (1, side, side), between 0 and 1. They are MNIST's 60,000 and 10,000 if its four files are in `folder`, or
    else scikit-learn's 1,797, every fifth of them held out.
    """
    if folder is not None:
        prepare = lambda batch: (data.to_float(batch[0]), batch[1])
        return data.MNIST(folder, "train").map(prepare, batched=True), data.MNIST(folder, "test").map(prepare, batched=True)
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    everything = data.ArrayDataset((images[order].reshape(-1, 1, 8, 8) / 16).astype(np.float32), labels[order].astype(np.int32))
    held_out = np.arange(len(everything)) % 5 == 0
    return data.Subset(everything, np.flatnonzero(~held_out)), data.Subset(everything, np.flatnonzero(held_out))


def epochs(loader: data.DataLoader, number: int) -> data.ProgressBar[Any]:
    """Return the batches of `number` epochs, with a progress bar."""
    batches = itertools.chain.from_iterable(itertools.repeat(loader, number))
    return data.progress(batches, "training", total=number * len(loader))


def train_shards(
    step: Callable[..., Any], parameters: Any, specs: Any, mesh: vf.sharding.Mesh, batch: tuple[Any, ...], steps: int
) -> list[float]:
    """Train this process's shards of parameters on one batch; return the losses.

    All processes have the same parameters at first. `step` returns new shards and the loss, which the first process prints.
    """
    shards = vf.tree.map(lambda spec, x: vf.device_put(x, vf.NamedSharding(mesh, spec)), specs, parameters)
    losses = []
    for _ in range(steps):
        shards, value = step(shards, *batch)
        losses.append(float(value))
    if vf.process_index() == 0:
        print(f"losses {np.round(losses[:: max(steps // 5, 1)], 4).tolist()}", flush=True)
    return losses


def save_images(path: Path, images: Any, columns: int) -> Path:
    """Write images (N, channels, height, width) as one picture with `columns` columns.

    They have one or three channels and values between 0 and 1.
    """
    import matplotlib.image

    n, channels, height, width = images.shape
    framed = np.ones((-(-n // columns) * columns, channels, height + 1, width + 1), np.float32)
    framed[:n, :, :-1, :-1] = np.clip(np.asarray(images), 0, 1)
    grid = framed.reshape(-1, columns, channels, height + 1, width + 1).transpose(0, 3, 1, 4, 2)
    picture = grid.reshape(-1, columns * (width + 1), channels)
    scale = max(1, 600 // max(picture.shape[:2]))
    path.parent.mkdir(parents=True, exist_ok=True)
    matplotlib.image.imsave(path, np.broadcast_to(picture, (*picture.shape[:2], 3)).repeat(scale, 0).repeat(scale, 1))
    return path


def accuracy(correct: Any, dataset: data.Dataset) -> float:
    """Return the accuracy on a dataset, given ``correct(*batch)``, a count."""
    counts = [correct(*batch) for batch in data.DataLoader(dataset, 500)]
    return int(jnp.sum(jnp.stack(counts))) / len(dataset)


def text(path: Path | None) -> str:
    """Return the text of a file, by default a million characters of Python's library."""
    if path is not None:
        return data.read_text(path)
    modules = sorted(Path(argparse.__file__).parent.glob("*.py"))
    sources = [source for source in map(data.read_text, modules) if source.isascii()]
    return "".join(sources)[:1_000_000]


@contextlib.contextmanager
def plot(path: Path) -> Iterator[Any]:
    """Yield Matplotlib axes to draw on, and save them as a PNG file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    yield axes
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    print(f"plot saved as {path.name}")
