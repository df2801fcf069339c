"""Transformations of updates, the components of optimizers."""
