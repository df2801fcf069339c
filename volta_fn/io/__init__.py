"""State dicts, safetensors files, mappings of names, checkpoints, loggers.

`files` reads and writes safetensors files, single or sharded. `state_dict` has the arrays of a tree by name, `mapper` maps them to other
names and from PyTorch's layouts. `pretrained` reads and writes language models and their adapters as Hugging Face does, also with weights
that GPTQ and AWQ packed, and `gguf` llama.cpp's files. `checkpoint` saves training states and restores them bit by bit, and `loggers` logs
numbers by step.

>>> import tempfile, volta_fn as vf
>>> model = vf.nn.Linear.init(vf.random.key(0), 2, 3)
>>> with tempfile.TemporaryDirectory() as folder:
...     vf.io.save_safetensors(f"{folder}/model.safetensors", model)
...     same = vf.io.load_state_dict(model, vf.io.load_safetensors(f"{folder}/model.safetensors"))
>>> (same.weight == model.weight).all().item()
True
"""

from volta_fn import advice as _advice
from volta_fn import lazy_imports as _lazy_imports
from volta_fn.io.checkpoint import Checkpointer as Checkpointer
from volta_fn.io.files import SafetensorsFile as SafetensorsFile
from volta_fn.io.files import ShardedSafetensors as ShardedSafetensors
from volta_fn.io.files import load_safetensors as load_safetensors
from volta_fn.io.files import open_safetensors as open_safetensors
from volta_fn.io.files import save_safetensors as save_safetensors
from volta_fn.io.gguf import GGUFFile as GGUFFile
from volta_fn.io.gguf import open_gguf as open_gguf
from volta_fn.io.gguf import save_gguf as save_gguf
from volta_fn.io.gguf import save_gguf_model as save_gguf_model
from volta_fn.io.loggers import CSVLogger as CSVLogger
from volta_fn.io.loggers import LivePlot as LivePlot
from volta_fn.io.loggers import MLflowLogger as MLflowLogger
from volta_fn.io.loggers import TensorBoardLogger as TensorBoardLogger
from volta_fn.io.loggers import WandbLogger as WandbLogger
from volta_fn.io.mapper import StateDictMapper as StateDictMapper
from volta_fn.io.mapper import from_torch as from_torch
from volta_fn.io.pretrained import from_awq as from_awq
from volta_fn.io.pretrained import from_gptq as from_gptq
from volta_fn.io.pretrained import load_adapter as load_adapter
from volta_fn.io.pretrained import load_pretrained as load_pretrained
from volta_fn.io.pretrained import save_adapter as save_adapter
from volta_fn.io.pretrained import save_pretrained as save_pretrained
from volta_fn.io.pretrained import unpack_weights as unpack_weights
from volta_fn.io.state_dict import Mismatch as Mismatch
from volta_fn.io.state_dict import StateDictDiff as StateDictDiff
from volta_fn.io.state_dict import diff_state_dict as diff_state_dict
from volta_fn.io.state_dict import load_state_dict as load_state_dict
from volta_fn.io.state_dict import state_dict as state_dict

__dir__ = _lazy_imports.directory(__name__, ".py")
__getattr__ = _advice.guard(__name__)
