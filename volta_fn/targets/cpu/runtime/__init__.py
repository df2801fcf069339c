"""Running compiled programs.

In the order in which to read: `commands` (a program as the executor sees it), `executor` (machine code that runs commands), `pool` (threads
that divide a routine's tasks among them), `affinity` (the CPUs where they wake up), `entry` (how Python calls a program), `objects`
(compiled code on disk), `support_code` (executor, pool and entry, compiled), `slots` (the table of a program's values), `artifact` (a
compiled program as data), `fingerprint` (a traced program as text), `store` (artifacts on disk, by that text), `deferred_errors`, `blocks`
(memory of results), and `program` (all of it together). The rest compiles what is not on disk: `code_cache` (routines compiled and loaded),
`host` (equations that NumPy evaluates), `writer` and `control_flow` (bodies as commands), and `compile`.
"""
