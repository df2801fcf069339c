from volta_fn.nn import initializers as initializers
from volta_fn.nn import losses as losses
from volta_fn.nn import metrics as metrics
from volta_fn.nn.activations import *
from volta_fn.nn.attention import *
from volta_fn.nn.filtering import *
from volta_fn.nn.functional import *
from volta_fn.nn.layers.adaptive_softmax import *
from volta_fn.nn.layers.batch_norm import *
from volta_fn.nn.layers.containers import *
from volta_fn.nn.layers.conv import *
from volta_fn.nn.layers.conv_transpose import *
from volta_fn.nn.layers.dropout import *
from volta_fn.nn.layers.folding import *
from volta_fn.nn.layers.interpolation import *
from volta_fn.nn.layers.layer_norm import *
from volta_fn.nn.layers.linear import *
from volta_fn.nn.layers.local_response_norm import *
from volta_fn.nn.layers.mlp import *
from volta_fn.nn.layers.padding import *
from volta_fn.nn.layers.randomized_relu import *
from volta_fn.nn.layers.resampling import *
from volta_fn.nn.layers.weight_norm import *
from volta_fn.nn.losses.binary import *
from volta_fn.nn.losses.classification import *
from volta_fn.nn.losses.ctc import *
from volta_fn.nn.losses.divergence import *
from volta_fn.nn.losses.margin import *
from volta_fn.nn.losses.regression import *
from volta_fn.nn.losses.similarity import *
from volta_fn.nn.model_summary import *
from volta_fn.nn.module import *
from volta_fn.nn.pooling.adaptive import *
from volta_fn.nn.pooling.fractional import *
from volta_fn.nn.pooling.power import *
from volta_fn.nn.pooling.sliding import *
from volta_fn.nn.pooling.unpooling import *
from volta_fn.nn.recurrent.cells import *
from volta_fn.nn.recurrent.layers import *
from volta_fn.nn.sampling import *
from volta_fn.nn.scaled_products import *
from volta_fn.nn.shrinkage import *
from volta_fn.nn.transformer.decoder import *
from volta_fn.nn.transformer.encoder import *
from volta_fn.nn.transformer.feed_forward import *
from volta_fn.nn.transformer.gpt import *
from volta_fn.nn.transformer.kv_cache import *
from volta_fn.nn.transformer.multi_head_attention import *
from volta_fn.nn.transformer.positions import *
from volta_fn.nn.transformer.scaled_dot_product import *
from volta_fn.scipy.special import logsumexp as logsumexp
from volta_fn.scipy.special.exponential import log_softmax as log_softmax
from volta_fn.scipy.special.exponential import softmax as softmax
