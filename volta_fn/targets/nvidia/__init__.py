"""NVIDIA's GPUs through their driver alone."""
