"""Functions with transformations applied to them: `jax.extend.linear_util`."""

from volta_fn.extend.functions import Store as Store
from volta_fn.extend.functions import StoreException as StoreException
from volta_fn.extend.functions import WrappedFun as WrappedFun
from volta_fn.extend.functions import cache as cache
from volta_fn.extend.functions import merge_linear_aux as merge_linear_aux
from volta_fn.extend.functions import transformation as transformation
from volta_fn.extend.functions import transformation2 as transformation2
from volta_fn.extend.functions import transformation_with_aux as transformation_with_aux
from volta_fn.extend.functions import transformation_with_aux2 as transformation_with_aux2
from volta_fn.extend.functions import wrap_init as wrap_init
