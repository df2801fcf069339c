"""Communication between processes, with JAX's names."""

from volta_fn.experimental.multihost import assert_equal as assert_equal
from volta_fn.experimental.multihost import broadcast_one_to_all as broadcast_one_to_all
from volta_fn.experimental.multihost import global_array_to_host_local_array as global_array_to_host_local_array
from volta_fn.experimental.multihost import host_local_array_to_global_array as host_local_array_to_global_array
from volta_fn.experimental.multihost import process_allgather as process_allgather
from volta_fn.experimental.multihost import sync_global_devices as sync_global_devices
