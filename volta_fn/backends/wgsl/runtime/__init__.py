"""Running programs of routines on a GPU.

In the order in which to read: `raw` (wgpu's C interface), `adapter` (which GPU, and what it can do), `memory` (blocks and buffers),
`interrupts` (Ctrl-C at the right time), `queue` (batches of commands, waiting, reading), `pipelines` (compiled shaders), `later` (better
ones), `gpu` (all of that together); `commands` (what a program is to the runtime), `copying`, `writer` and `control_flow` (bodies as
commands), `parts` (of large arrays) and `portions` (of long work), `abreast` (commands that need not wait), `replay` and `stretches`
(commands done again, by machine code), `trend` (memory that grows), `program` (commands done), and `backend`.
"""
