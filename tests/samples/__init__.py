"""Samples of every primitive, by family."""
