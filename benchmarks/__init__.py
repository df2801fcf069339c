"""Speed and memory of volta_fn, JAX and PyTorch: `python -m benchmarks`."""
