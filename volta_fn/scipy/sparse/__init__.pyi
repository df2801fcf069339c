from volta_fn.scipy.sparse import linalg as linalg
