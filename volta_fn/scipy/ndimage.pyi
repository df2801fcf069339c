"""Interpolation of arrays at coordinates: names of `scipy.ndimage`."""

from volta_fn.scipy.interpolation import map_coordinates as map_coordinates
