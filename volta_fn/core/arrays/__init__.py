"""Arrays: values on a device, and what is done with their memory.

In the order in which to read: `array`, `memory` (donation and transfers), `dlpack` (memory shared with other libraries), `arrow` (columns
of tables), `html` (what notebooks show).
"""
