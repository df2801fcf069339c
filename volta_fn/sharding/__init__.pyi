from volta_fn.core.distribution.placement import reshard as reshard
from volta_fn.core.distribution.sharding import AbstractMesh as AbstractMesh
from volta_fn.core.distribution.sharding import AxisType as AxisType
from volta_fn.core.distribution.sharding import Mesh as Mesh
from volta_fn.core.distribution.sharding import NamedSharding as NamedSharding
from volta_fn.core.distribution.sharding import PartitionSpec as PartitionSpec
from volta_fn.core.distribution.sharding import Sharding as Sharding
from volta_fn.core.distribution.sharding import SingleDeviceSharding as SingleDeviceSharding
from volta_fn.core.distribution.sharding import get_abstract_mesh as get_abstract_mesh
from volta_fn.core.distribution.sharding import get_mesh as get_mesh
from volta_fn.core.distribution.sharding import make_mesh as make_mesh
from volta_fn.core.distribution.sharding import set_mesh as set_mesh
from volta_fn.sharding.mapping import auto_axes as auto_axes
from volta_fn.sharding.mapping import explicit_axes as explicit_axes
from volta_fn.sharding.mapping import pmap as pmap
from volta_fn.sharding.mapping import shard_map as shard_map
from volta_fn.sharding.mapping import use_abstract_mesh as use_abstract_mesh

use_mesh = set_mesh
