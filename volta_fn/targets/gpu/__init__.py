"""Run programs on a GPU, through a driver.

In the order in which to read: `device` (the interface of drivers, a GPU, its memory, its compiled shaders, and its queue), `program` (calls
of a plan, recorded and replayed; it can note the time of each dispatch) and `backend` (the GPUs of the machine, and arrays computed again
after a loss). Plans are made by `targets.wgsl.plans`, and need no device.
"""
