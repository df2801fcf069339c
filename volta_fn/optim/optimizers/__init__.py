"""Optimizers: chains of transformations under their usual names."""
