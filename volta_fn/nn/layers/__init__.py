"""Layers: linear maps, convolutions, pooling, norms, dropout, containers."""
