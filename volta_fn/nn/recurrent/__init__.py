"""Recurrent networks: cells, which take one step, and layers, which run cells over whole sequences."""
