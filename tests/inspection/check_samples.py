"""Let `crosscheck` look at the samples of all primitives: on targets as they are it must find nothing.

    python -m tests.inspection.check_samples [--device cpu|gpu] [--every N] [--shift K]

Prints each sample and dtype for which it finds something or raises, and how many there were. Exits with 1 if there was one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

import volta_fn as vf
from tests.laws.common import arrays, draw
from tests.samples import samples_of_code
from tests.samples.sample import Sample
from volta_fn import dtypes
from volta_fn.inspection.crosscheck import Crosscheck


def crosschecked(sample: Sample) -> Iterator[tuple[str, Crosscheck]]:
    """Yield for each dtype of a sample what is found on the default device."""
    for name in sample.dtypes:
        yield name, vf.crosscheck(sample.function)(*arrays(draw(sample, dtypes.as_dtype(name))))


def main() -> int:
    """Look at the samples; return 1 if something was found."""
    parser = argparse.ArgumentParser(description="crosscheck on the samples of all primitives.")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="one sample in N")
    parser.add_argument("--shift", type=int, default=0, metavar="K", help="which of N")
    options = parser.parse_args()
    samples = list(samples_of_code())[options.shift :: options.every]
    checked = equations = wrong = 0
    skipped: set[str] = set()
    with vf.default_device(vf.devices(options.device)[0]):
        for sample in samples:
            try:
                for name, result in crosschecked(sample):
                    checked, equations = checked + 1, equations + result.equations
                    skipped |= {*result.skipped}
                    if not result:
                        wrong += 1
                        print(f"{sample} in {name}: {result}", flush=True)
            except Exception as error:
                wrong += 1
                print(f"{sample}: {type(error).__name__}: {error}", flush=True)
    print(f"{len(samples)} samples, {checked} with their dtypes, {equations} equations; {wrong} findings")
    print("skipped:", ", ".join(sorted(skipped)))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
