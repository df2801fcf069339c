from volta_fn.scipy.fft.cosine_transforms import dct as dct
from volta_fn.scipy.fft.cosine_transforms import dctn as dctn
from volta_fn.scipy.fft.cosine_transforms import idct as idct
from volta_fn.scipy.fft.cosine_transforms import idctn as idctn
