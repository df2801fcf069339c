"""The functions of `volta_fn.tree` by the longer names of `jax.tree_util`.

>>> from volta_fn import tree_util
>>> tree_util.tree_map(lambda x: 2 * x, {"a": 1})
{'a': 2}
"""

from volta_fn import tree
from volta_fn.tree import DictKey as DictKey
from volta_fn.tree import FlattenedIndexKey as FlattenedIndexKey
from volta_fn.tree import GetAttrKey as GetAttrKey
from volta_fn.tree import KeyPath as KeyPath
from volta_fn.tree import Partial as Partial
from volta_fn.tree import SequenceKey as SequenceKey
from volta_fn.tree import all_leaves as all_leaves
from volta_fn.tree import keystr as keystr
from volta_fn.tree import register_dataclass as register_dataclass
from volta_fn.tree import register_pytree_node as register_pytree_node
from volta_fn.tree import register_pytree_node_class as register_pytree_node_class
from volta_fn.tree import register_pytree_with_keys as register_pytree_with_keys
from volta_fn.tree import register_pytree_with_keys_class as register_pytree_with_keys_class
from volta_fn.tree import register_static as register_static
from volta_fn.tree import treedef_children as treedef_children
from volta_fn.tree import treedef_is_leaf as treedef_is_leaf
from volta_fn.tree import treedef_tuple as treedef_tuple

PyTreeDef = tree.TreeDef
tree_flatten = tree.flatten
tree_unflatten = tree.unflatten
tree_leaves = tree.leaves
tree_structure = tree.structure
tree_map = tree.map
tree_reduce = tree.reduce
tree_reduce_associative = tree.reduce_associative
tree_all = tree.all
tree_transpose = tree.transpose
tree_broadcast = tree.broadcast
tree_flatten_with_path = tree.flatten_with_path
tree_leaves_with_path = tree.leaves_with_path
tree_map_with_path = tree.map_with_path
