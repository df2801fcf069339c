"""Compare the loader's threads and processes with PyTorch's.

`python -m benchmarks.loader` prints, for each dataset, whose work is Python's, and each way of loading, the images a second of both and
their ratio. The loaders take turns in one run, and the best of several epochs counts, since other programs can only slow one down. All
yield the same examples, in the same order. `--workers N` (default: 2), `--rounds N`; `--quick` only checks that everything runs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from volta_fn import data

#: Examples in an epoch, and in a batch; the first batch starts the workers and is not timed.
EXAMPLES, BATCH = 4096, 128


class Small:
    """Images of CIFAR's size, padded, cut out and mirrored in NumPy."""

    def __init__(self, count: int) -> None:
        self.images = np.random.default_rng(0).integers(0, 256, (count, 3, 32, 32)).astype(np.uint8)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        random = np.random.default_rng(index)
        padded = np.pad(self.images[index], ((0, 0), (4, 4), (4, 4)))
        top, left = random.integers(0, 9, 2)
        image = padded[:, top : top + 32, left : left + 32]
        return (image[:, :, ::-1] if random.random() < 0.5 else image).astype(np.float32) / 255, int(index)


class Large(Small):
    """Images of ImageNet's size, as floats: much to send, and little to compute."""

    def __init__(self, count: int) -> None:
        super().__init__(8)
        self.count = count
        self.images = np.random.default_rng(0).integers(0, 256, (8, 3, 224, 224)).astype(np.uint8)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return self.images[index % 8].astype(np.float32) / 255, int(index)


def rate(batches: Callable[[], Iterable[Any]], size: int) -> tuple[float, float]:
    """Return the images a second after the first batch, and a checksum of them."""
    iterator = iter(batches())
    total = _summary(next(iterator))
    start, count = time.perf_counter(), 0
    for batch in iterator:
        total += _summary(batch)
        count += size
    return count / (time.perf_counter() - start), total


def _summary(batch: Any) -> float:
    images, labels = batch
    return float(np.asarray(images)[:, 0, 0, 0].sum()) + float(np.asarray(labels).sum())


def contestants(dataset: Any, workers: int) -> dict[str, Callable[[], Iterable[Any]]]:
    """Return the loaders by name."""
    result: dict[str, Callable[[], Iterable[Any]]] = {
        "on demand": lambda: data.DataLoader(dataset, BATCH),
        f"{workers} threads": lambda: data.DataLoader(dataset, BATCH, workers=workers),
        f"{workers} processes": lambda: data.DataLoader(dataset, BATCH, workers=workers, processes=True),
    }
    try:
        from torch.utils.data import DataLoader  # optional
    except ImportError:
        return result
    result["PyTorch on demand"] = lambda: DataLoader(dataset, BATCH)
    result[f"PyTorch {workers} processes"] = lambda: DataLoader(dataset, BATCH, num_workers=workers)
    return result


def main() -> int:
    """Print the table; return 1 if two loaders yield different examples."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    agree = True
    for kind, count in ((Small, EXAMPLES), (Large, EXAMPLES // 4)):
        dataset = kind(2 * BATCH if options.quick else count)
        loaders = contestants(dataset, options.workers)
        rates, sums = dict.fromkeys(loaders, 0.0), dict.fromkeys(loaders, 0.0)
        for _ in range(1 if options.quick else options.rounds):
            for name, batches in loaders.items():
                images, sums[name] = rate(batches, BATCH)
                rates[name] = max(rates[name], images)
        agree &= bool(np.ptp(list(sums.values())) <= 1e-3 * abs(sums["on demand"]))
        for name, images in rates.items():
            peer = rates.get("PyTorch on demand" if "demand" in name else f"PyTorch {options.workers} processes")
            ratio = "" if peer is None or name.startswith("PyTorch") else f"{images / peer:6.2f} times PyTorch's"
            print(f"{kind.__name__.lower():6s} {name:22s} {images:8.0f} images/s {ratio}")
    print("all loaders yield the same examples" if agree else "the loaders yield different examples")
    return 0 if agree else 1


if __name__ == "__main__":
    raise SystemExit(main())
