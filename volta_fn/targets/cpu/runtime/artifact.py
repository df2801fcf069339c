"""Artifacts: compiled programs as data, which can be kept on disk."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from volta_fn.compiler.buffers.memory_layout import Output
from volta_fn.targets.cpu.runtime.slots import Layout


class Artifact(NamedTuple):
    """What a program became."""

    #: The commands; the words at `places` are numbers of phases, which stand for their addresses.
    words: np.ndarray
    places: np.ndarray
    layout: Layout
    #: Whether other Python threads should run meanwhile.
    long: bool
    outputs: tuple[Output, ...]
    #: The arrays that the program makes.
    specs: tuple[tuple[tuple[int, ...], np.dtype], ...]
    #: Results that go into the memory of donated arguments: pairs of their numbers.
    reuse: tuple[tuple[int, int], ...]
