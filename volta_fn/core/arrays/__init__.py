"""Arrays: values on a device, and what is done with their memory.

In the order in which to read: `array`, `memory` (donation, transfers, and memory shared with other libraries), `html` (what notebooks
show).
"""
