"""Transformers: attention as function and layer, positions, and the layers and stacks of encoders and decoders."""

from volta_fn.nn.transformer.decoder import DecoderCache as DecoderCache
from volta_fn.nn.transformer.decoder import TransformerDecoder as TransformerDecoder
from volta_fn.nn.transformer.decoder import TransformerDecoderLayer as TransformerDecoderLayer
from volta_fn.nn.transformer.encoder import TransformerEncoder as TransformerEncoder
from volta_fn.nn.transformer.encoder import TransformerEncoderLayer as TransformerEncoderLayer
from volta_fn.nn.transformer.feed_forward import FeedForward as FeedForward
from volta_fn.nn.transformer.kv_cache import KeysValues as KeysValues
from volta_fn.nn.transformer.kv_cache import KVCache as KVCache
from volta_fn.nn.transformer.multi_head_attention import MultiHeadAttention as MultiHeadAttention
from volta_fn.nn.transformer.positions import LearnedPositions as LearnedPositions
from volta_fn.nn.transformer.positions import SinusoidalPositions as SinusoidalPositions
from volta_fn.nn.transformer.positions import apply_rotary as apply_rotary
from volta_fn.nn.transformer.positions import sinusoidal_positions as sinusoidal_positions
from volta_fn.nn.transformer.scaled_dot_product import causal_mask as causal_mask
from volta_fn.nn.transformer.scaled_dot_product import scaled_dot_product_attention as scaled_dot_product_attention
