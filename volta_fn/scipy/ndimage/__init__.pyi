from volta_fn.scipy.ndimage.interpolation import map_coordinates as map_coordinates
