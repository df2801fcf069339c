"""Recurrent networks: cells, which take one step, and layers, which run cells over whole sequences."""

from volta_fn.nn.recurrent.cells import GRUCell as GRUCell
from volta_fn.nn.recurrent.cells import LSTMCell as LSTMCell
from volta_fn.nn.recurrent.cells import RNNCell as RNNCell
from volta_fn.nn.recurrent.layers import GRU as GRU
from volta_fn.nn.recurrent.layers import LSTM as LSTM
from volta_fn.nn.recurrent.layers import RNN as RNN
