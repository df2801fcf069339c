"""Pytrees: nested containers with arrays at their leaves, by the names and meanings of `jax.tree` and `jax.tree_util`.

>>> from volta_fn import tree
>>> tree.map(lambda x: x + 1, {"w": [1, 2], "b": None})
{'w': [2, 3], 'b': None}
"""

from volta_fn.tree.keys import DictKey as DictKey
from volta_fn.tree.keys import FlattenedIndexKey as FlattenedIndexKey
from volta_fn.tree.keys import GetAttrKey as GetAttrKey
from volta_fn.tree.keys import KeyPath as KeyPath
from volta_fn.tree.keys import SequenceKey as SequenceKey
from volta_fn.tree.keys import keystr as keystr
from volta_fn.tree.partial import Partial as Partial
from volta_fn.tree.registry import register_dataclass as register_dataclass
from volta_fn.tree.registry import register_node as register_node
from volta_fn.tree.registry import register_pytree_node as register_pytree_node
from volta_fn.tree.registry import register_pytree_node_class as register_pytree_node_class
from volta_fn.tree.registry import register_pytree_with_keys as register_pytree_with_keys
from volta_fn.tree.registry import register_static as register_static
from volta_fn.tree.structure import TreeDef as TreeDef
from volta_fn.tree.structure import all as all
from volta_fn.tree.structure import broadcast as broadcast
from volta_fn.tree.structure import broadcast_prefix as broadcast_prefix
from volta_fn.tree.structure import describe as describe
from volta_fn.tree.structure import first_difference as first_difference
from volta_fn.tree.structure import flatten as flatten
from volta_fn.tree.structure import flatten_up_to as flatten_up_to
from volta_fn.tree.structure import flatten_with_path as flatten_with_path
from volta_fn.tree.structure import leaves as leaves
from volta_fn.tree.structure import leaves_with_path as leaves_with_path
from volta_fn.tree.structure import map as map
from volta_fn.tree.structure import map_with_path as map_with_path
from volta_fn.tree.structure import reduce as reduce
from volta_fn.tree.structure import structure as structure
from volta_fn.tree.structure import transpose as transpose
from volta_fn.tree.structure import unflatten as unflatten
