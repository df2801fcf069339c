"""Running programs of routines.

In the order in which to read: `commands` (what a program is to the machine), `executor` (the machine code that runs commands), `pool`
(threads that share out a routine's tasks), `places` (the CPUs where they wake up), `entry` (how Python calls a program), `objects` (what is
kept on disk), `machinery` (executor, pool and entry, compiled), `slots` (the table of its values), `artifact` (a compiled program as data),
`serial` (a traced program as text), `store` (artifacts on disk, by that text), `failures`, `blocks` (memory of results), and `program`
(all of it together). The rest
compiles what is not on disk: `code` (routines compiled and loaded), `host` (equations that NumPy computes), `writer` and `control_flow`
(bodies as commands), and `building`.
"""
