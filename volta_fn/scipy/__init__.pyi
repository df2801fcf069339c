from volta_fn.scipy import fft as fft
from volta_fn.scipy import integrate as integrate
from volta_fn.scipy import linalg as linalg
from volta_fn.scipy import ndimage as ndimage
from volta_fn.scipy import optimize as optimize
from volta_fn.scipy import signal as signal
from volta_fn.scipy import sparse as sparse
from volta_fn.scipy import special as special
