"""Vector quantisation: the name of `scipy.cluster.vq`."""

from volta_fn.scipy.stats.summaries import vq as vq
