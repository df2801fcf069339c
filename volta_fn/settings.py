"""The switches of the package's behaviour; `volta_fn.config` sets them.

They belong to the process, not to a thread. Modules read them where they matter: `settings.current.rank_promotion`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

#: Whether the compiler verifies its programs by default.
VERIFY = os.environ.get("VOLTA_VERIFY", "0") != "0"


@dataclass(slots=True)
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

    permissive: bool = False
    sorted_dicts: bool = False
    debug_nans: bool = False
    debug_infs: bool = False
    disable_jit: bool = False
    log_compiles: bool = False
    explain_cache_misses: bool = False
    check_tracer_leaks: bool = False
    check_indices: bool = False
    rank_promotion: str = "allow"
    legacy_prng_key: str = "allow"
    default_prng_impl: str = "threefry2x32"
    random_seed_offset: int = 0
    check_static_indices: bool = False
    calling_convention: int = 10
    disable_bwd_checks: bool = False
    matmul_precision: str | None = None
    allow_f16_reductions: bool = True
    verify: bool = VERIFY

    @property
    def sees_results(self) -> bool:
        """Whether every result is checked, so that programs run equation by equation."""
        return self.debug_nans or self.debug_infs


current = Settings()
