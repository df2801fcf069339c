"""Transformations of other transformations: chains, masks, conditions, accumulation."""
