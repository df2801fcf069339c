"""Speed on a GPU, against JAX and PyTorch on CUDA: `python -m benchmarks.gpu`."""
