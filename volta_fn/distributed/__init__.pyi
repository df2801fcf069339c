from volta_fn.core.devices.device import local_device_count as local_device_count
from volta_fn.core.devices.device import local_devices as local_devices
from volta_fn.core.devices.device import process_count as process_count
from volta_fn.core.devices.device import process_index as process_index
from volta_fn.distributed.world import initialize as initialize
from volta_fn.distributed.world import is_initialized as is_initialized
from volta_fn.distributed.world import shutdown as shutdown
from volta_fn.distributed.world import statistics as statistics
