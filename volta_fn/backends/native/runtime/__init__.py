"""Running programs of routines.

In the order in which to read: `commands` (what a program is to the machine), `executor` (the machine code that runs commands), `pool`
(threads that share out a routine's tasks), `entry` (how Python calls a program), `machinery` (these three, compiled), `objects` (machine
code kept on disk), `code` (routines compiled and loaded), `slots` (where a program's values are), `host` (equations that NumPy
computes), `bodies` (partitions made ready), `writer` and `control_flow` (partitions as commands), and `program` (all of it together).
"""
