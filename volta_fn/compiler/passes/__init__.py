"""Passes: programs rewritten into simpler ones that give the same values, to the last bit."""
