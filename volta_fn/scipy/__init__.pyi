from volta_fn.scipy import cluster as cluster
from volta_fn.scipy import interpolate as interpolate
from volta_fn.scipy import linalg as linalg
from volta_fn.scipy import spatial as spatial
from volta_fn.scipy import special as special
from volta_fn.scipy import stats as stats
