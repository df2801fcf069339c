"""Run programs on a GPU, through a driver.

A call goes through `backend`, `program`, `queue` and a driver, in this order; `targets.wgsl` tells how a dispatch changes on the way. Its
arrays are *buffers*. A buffer refers to a *lease*, the right to use a *block* of memory, which returns to the pool with the lease's last
reference. In a program values have *slots*, and a call assigns a block to each.

In the order in which to read: `driver` (the interface of a GPU's driver), `memory` (blocks and buffers, and a warning when memory grows),
`queue` (batches of dispatches, and copies to the host), `pipelines` (compiled shaders, faster ones in the background, and tests of the
device), `device` (an open device with all of that, and what opens it, again after a loss, and times schedules on it), `program` (calls of
a plan, recorded and replayed; it can note the time of each dispatch) and `backend` (the GPUs of the machine, and arrays computed again
after a loss). Plans are made by `targets.wgsl.program_plan`, and need no device.
"""
