from volta_fn.scipy import linalg as linalg
from volta_fn.scipy import special as special
from volta_fn.scipy import stats as stats
