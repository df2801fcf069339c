"""Jaxpr → plan: simplification and scheduling, knowing no backend."""
