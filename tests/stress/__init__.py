"""Stress tests, which `VOLTA_STRESS` makes longer."""
