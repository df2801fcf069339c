"""Arrays of devices for meshes, with the names of JAX's `mesh_utils`."""

from volta_fn.experimental.multihost import create_device_mesh as create_device_mesh
from volta_fn.experimental.multihost import create_hybrid_device_mesh as create_hybrid_device_mesh
