from volta_fn.scipy.spatial import transform as transform
