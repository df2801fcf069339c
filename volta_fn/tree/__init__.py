"""Pytrees: nested containers with arrays at their leaves, by the names and meanings of `jax.tree` and `jax.tree_util`.

>>> from volta_fn import tree
>>> tree.map(lambda x: x + 1, {"w": [1, 2], "b": None})
{'w': [2, 3], 'b': None}
"""

from typing import TYPE_CHECKING

from volta_fn import on_demand as _on_demand

if TYPE_CHECKING:
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
    from volta_fn.tree.registry import register_pytree_with_keys_class as register_pytree_with_keys_class
    from volta_fn.tree.registry import register_static as register_static
    from volta_fn.tree.structures import TreeDef as TreeDef
    from volta_fn.tree.structures import all as all
    from volta_fn.tree.structures import broadcast as broadcast
    from volta_fn.tree.structures import broadcast_prefix as broadcast_prefix
    from volta_fn.tree.structures import describe as describe
    from volta_fn.tree.structures import first_difference as first_difference
    from volta_fn.tree.structures import flatten as flatten
    from volta_fn.tree.structures import flatten_up_to as flatten_up_to
    from volta_fn.tree.structures import flatten_with_path as flatten_with_path
    from volta_fn.tree.structures import leaves as leaves
    from volta_fn.tree.structures import leaves_with_path as leaves_with_path
    from volta_fn.tree.structures import map as map
    from volta_fn.tree.structures import map_with_path as map_with_path
    from volta_fn.tree.structures import reduce as reduce
    from volta_fn.tree.structures import reduce_associative as reduce_associative
    from volta_fn.tree.structures import structure as structure
    from volta_fn.tree.structures import transpose as transpose
    from volta_fn.tree.structures import unflatten as unflatten
    from volta_fn.tree.treedefs import all_leaves as all_leaves
    from volta_fn.tree.treedefs import treedef_children as treedef_children
    from volta_fn.tree.treedefs import treedef_is_leaf as treedef_is_leaf
    from volta_fn.tree.treedefs import treedef_tuple as treedef_tuple
else:
    __getattr__, __dir__ = _on_demand.exports(
        __name__,
        "",
        {
            ".keys": "DictKey FlattenedIndexKey GetAttrKey KeyPath SequenceKey keystr",
            ".partial": "Partial",
            ".registry": (
                "register_dataclass register_node register_pytree_node register_pytree_node_class register_pytree_with_keys "
                "register_pytree_with_keys_class register_static"
            ),
            ".structures": (
                "TreeDef all broadcast broadcast_prefix describe first_difference flatten flatten_up_to "
                "flatten_with_path leaves leaves_with_path map map_with_path reduce reduce_associative structure transpose "
                "unflatten"
            ),
            ".treedefs": "all_leaves treedef_children treedef_is_leaf treedef_tuple",
        },
    )
