"""Strict settings for every test: warnings are errors (see pyproject.toml), generated examples are the same in every run."""

from hypothesis import HealthCheck, settings

settings.register_profile("strict", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], database=None)
settings.load_profile("strict")
