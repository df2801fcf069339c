"""Running compiled programs.

`program.Program.of` → `compile.build` → `compile.assemble` → `executor`, which the built-ins of `volta_fn.runtime.fastcall` call.

In the order in which to read: `program` (a program as a function of NumPy arrays, compiled or loaded, and functions of NumPy among its
commands), `compile` (lowered programs to commands, the machine code of each routine, and programs that note the time of each item),
`executor` (the machine code that runs commands, and threads that share a launch's tasks), and `artifact` (the cache on disk, and compiled
programs as data, its entries). A program that is in the cache loads neither `compile` nor the compiler.
"""
