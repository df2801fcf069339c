"""Speed and memory of volta_fn beside JAX and PyTorch, in one run: `python -m benchmarks`."""
