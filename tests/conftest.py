"""Strict settings for every test: warnings are errors (see pyproject.toml), generated examples are the same in every run."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("strict", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], database=None)
settings.load_profile("strict")

# Two test processes share the cores: BLAS threads of their own would only wait for each other. JAX, an oracle here, is asked for
# numbers once, so that its compiler's optimisations cost more than they save. Both are read when those libraries are loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
