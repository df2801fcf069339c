"""Collectives between GPUs of one machine, through memory that they share.

Each process has a GPU. Processes open each other's memory (`memory`), where a kernel leaves what the others' kernels read, and all such
kernels do the same: they leave words, announce them by flags, and wait for those of others. `kernels` are the collectives themselves,
which combine words as numbers, and their routines. They are kernels like others, which CUDA graphs contain.
"""

from volta_fn.targets.nvidia.peers.kernels import ROUTINES, sums

__all__ = ["ROUTINES", "sums"]
