from volta_fn.nn import initializers as initializers
from volta_fn.nn import losses as losses
from volta_fn.nn import metrics as metrics
from volta_fn.nn.activations import *
from volta_fn.nn.adapters import *
from volta_fn.nn.attention import *
from volta_fn.nn.classification_losses import *
from volta_fn.nn.filtering import *
from volta_fn.nn.language.config import *
from volta_fn.nn.language.continuous_batch import *
from volta_fn.nn.language.decoder import *
from volta_fn.nn.language.generation import *
from volta_fn.nn.language.layers import *
from volta_fn.nn.layers.containers import *
from volta_fn.nn.layers.linear import *
from volta_fn.nn.layers.multi_head_attention import *
from volta_fn.nn.layers.normalization import *
from volta_fn.nn.layers.pooling import *
from volta_fn.nn.layers.resampling import *
from volta_fn.nn.layers.transformer import *
from volta_fn.nn.model_summary import *
from volta_fn.nn.module import *
from volta_fn.nn.quantization import *
from volta_fn.nn.quantized_array import *
from volta_fn.nn.recurrent import *
from volta_fn.nn.regression_losses import *
from volta_fn.scipy.special import logsumexp as logsumexp
from volta_fn.scipy.special.exponential import log_softmax as log_softmax
from volta_fn.scipy.special.exponential import softmax as softmax
