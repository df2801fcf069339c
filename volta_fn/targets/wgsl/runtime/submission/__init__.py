"""Work on its way to the GPU, and results on their way back.

In the order in which to read: `interrupts` (deferring Ctrl-C), `queue` (batches of commands, waiting), `replay` (dispatches written to
the queue), `command_lists` (commands recorded and replayed), `copying` (on the device) and `readback` (copies to the host).
"""
