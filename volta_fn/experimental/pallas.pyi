"""Pallas, which is not supported: kernels are generated from programs."""
