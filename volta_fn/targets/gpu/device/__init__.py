"""An open GPU: its memory, its compiled shaders, and what becomes of them.

In the order in which to read: `driver` (the interface of a GPU's driver), `memory` (blocks and buffers, and a warning when memory grows),
`queue` (batches of dispatches, and copies to the host), `pipelines` (compiled shaders, faster ones in the background, and tests of the
device), and `gpu` (an open device with all of that, and what opens it, again after a loss, and times schedules on it).
"""
