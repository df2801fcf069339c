from volta_fn.scipy.cluster import vq as vq
