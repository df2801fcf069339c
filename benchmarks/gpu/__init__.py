"""Speed on a GPU beside JAX and PyTorch on CUDA: `python -m benchmarks.gpu`."""
