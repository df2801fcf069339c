"""What users set: switches of the package, and variables of the environment.

`volta_fn.config` sets the switches. They belong to the process, not to a thread. Modules read them where they matter:
`settings.current.rank_promotion`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

from volta_fn.errors import ArgumentError

#: Whether the compiler verifies its programs by default.
VERIFY = os.environ.get("VOLTA_VERIFY", "0") != "0"


class Settings:
    """The switches.

    Attributes:
        permissive: whether, as in JAX, known indices out of range are moved inside or dropped, and values that an array is to hold are
            cast to its dtype, where else an error says so.
        sorted_dicts: whether, as in JAX, a tree is made with its dictionaries in the order of their sorted keys, not in that in which they
            were written.
        debug_nans, debug_infs: whether every result is checked for NaN, or infinities.
        check_indices: whether programs that are traced check their indices when they run.
        log_compiles, explain_cache_misses: whether the logger `volta_fn` tells of each trace, and why there was no program.
        check_tracer_leaks: whether a traced value that outlives its trace is an error at once.
        disable_jit: whether jitted functions and loops run in Python.
        rank_promotion: "allow", "warn" or "raise": what happens when operands have different ranks.
        threefry_partitionable: whether a random bit of Threefry depends on its position alone, not on how many bits there are.
        high_dynamic_range_gumbel: whether Gumbel's numbers have the mode "high" if none is named.
        random_seed_offset: what is added to the seeds of random keys.
        check_static_indices: whether known indices out of range raise although `permissive` is set.
        legacy_prng_key: "allow", "warn" or "error": what happens when raw data serve as a key.
        default_prng_impl: the implementation of random keys, if none is named.
        matmul_precision: the precision of products that name none; None: that of their dtype.
        allow_f16_reductions: whether numbers of 16 bits may be added up.
        verify: whether the compiler verifies programs, kernels and memory after each pass, and shaders that NVIDIA's driver compiles check
            their indices (`VOLTA_VERIFY`).
        calling_convention: the version of JAX's calling convention that exported functions are to have.
        disable_bwd_checks: whether backward rules may return cotangents of other shapes and dtypes than their arguments have.
    """

    def __init__(self) -> None:  # no dataclass, which takes half a millisecond of each start
        self.permissive = False
        self.sorted_dicts = False
        self.debug_nans = False
        self.debug_infs = False
        self.disable_jit = False
        self.log_compiles = False
        self.explain_cache_misses = False
        self.check_tracer_leaks = False
        self.check_indices = False
        self.rank_promotion = "allow"
        self.legacy_prng_key = "allow"
        self.default_prng_impl = "threefry2x32"
        self.threefry_partitionable = True
        self.high_dynamic_range_gumbel = False
        self.random_seed_offset = 0
        self.check_static_indices = False
        self.calling_convention = 10
        self.disable_bwd_checks = False
        self.matmul_precision: str | None = None
        self.allow_f16_reductions = True
        self.verify = VERIFY

    @property
    def sees_results(self) -> bool:
        """Whether every result is checked, so that programs run equation by equation."""
        return self.debug_nans or self.debug_infs


current = Settings()


# Variables of the environment that users set, and their admissible values.
#
# All are checked when the CPU is first used, so that a wrong value is reported even if the program never uses its variable.

#: The most threads and devices: more take minutes to start, and gain nothing.
_MOST_THREADS, _MOST_DEVICES = 1024, 256


class _Kind:
    """The admissible values of a variable."""

    def __init__(self, expected: str, parse: Callable[[str], Any], least: float = -math.inf, most: float = math.inf) -> None:
        self.expected, self.least, self.most = expected, least, most
        #: Converts a text to the value, or raises ValueError.
        self.parse = parse


def _digits(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ValueError(text)
    return int(text)


def _count(of: str, least: int = 0, most: int = 2**63 - 1) -> _Kind:
    return _Kind(f"a number of {of}, from {least} to {most}", _digits, least, most)


def _one_of(*words: str) -> _Kind:
    return _Kind(" or ".join(map(repr, words)), {word: word for word in words}.__getitem__)


_SECONDS, _FLAG = _Kind("a number of seconds, at least 0", float, 0), _one_of("0", "1")
_KINDS = {
    "VOLTA_CACHE_BYTES": _count("bytes"),
    "VOLTA_CHECK_INDICES": _FLAG,
    "VOLTA_COLLECTIVE_TIMEOUT": _SECONDS,
    "VOLTA_CPU_DEVICES": _count("devices", 1, _MOST_DEVICES),
    "VOLTA_GPU_CHECKS": _FLAG,
    "VOLTA_GPU_DEBUG": _FLAG,
    "VOLTA_GPU_DRIVER": _one_of("nvidia", "wgpu"),
    "VOLTA_GPU_LIMITS": _one_of("webgpu"),
    "VOLTA_GPU_MEMORY": _count("bytes"),
    "VOLTA_GPU_TIMEOUT": _SECONDS,
    "VOLTA_GPU_TUNE": _FLAG,
    "VOLTA_MEMORY": _count("bytes"),
    "VOLTA_NATIVE": _FLAG,
    "VOLTA_NUMPY_DTYPE_PROMOTION": _one_of("standard", "strict"),
    "VOLTA_NUM_THREADS": _count("threads", 1, _MOST_THREADS),
    "VOLTA_PEER_MEMORY": _FLAG,
    "VOLTA_TRACEBACK_FILTERING": _one_of("on", "off"),
    "VOLTA_VECTOR_BYTES": _one_of("16", "32", "64"),
    "VOLTA_VERIFY": _FLAG,
}


def value_of(variable: str) -> Any:
    """Return the value of a variable; None if it is not set, or empty.

    Raises `ArgumentError` for an inadmissible value.
    """
    text = os.environ.get(variable)
    return _checked(variable, text) if text else None


def _checked(variable: str, text: str) -> Any:
    kind = _KINDS[variable]
    try:
        value = kind.parse(text)
        if not isinstance(value, str) and not kind.least <= value <= kind.most:  # nor NaN
            raise ValueError(text)
    except (KeyError, ValueError):
        raise ArgumentError(f"{variable} is {text!r:.80}, but must be {kind.expected}") from None
    return value


def check_device_count(count: int) -> int:
    """Return a number of CPU devices; raise `ArgumentError` if it is not admissible."""
    return int(_checked("VOLTA_CPU_DEVICES", str(count)))


def check_variables() -> None:
    """Raise `ArgumentError` for the first variable with an inadmissible value."""
    for variable in _KINDS:
        value_of(variable)
