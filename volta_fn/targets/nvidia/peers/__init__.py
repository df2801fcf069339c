"""Collectives between GPUs of one machine, through memory that they share.

Each process has a GPU. Processes open each other's memory (`memory`), where a kernel leaves what the others' kernels read. `exchange` has
what all such kernels do: they leave words, announce them by flags, and wait for those of others. `numbers` combines words, and `kernels`
are the collectives themselves, whose routines `routines` chooses. They are kernels like others, which CUDA graphs contain.
"""

from volta_fn.targets.nvidia.peers.routines import ROUTINES, sums

__all__ = ["ROUTINES", "sums"]
