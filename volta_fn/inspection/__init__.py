"""See inside a program: `explain`, `crosscheck`, `lint`.

`attribution` tells which equations and lines of the user a kernel comes from, `costs` what it has to do at least, `roofline` how fast
the device could do it, `measure` how long it takes, and `passes` what each pass of the compiler changed. `explain` collects all of that in
an `explanation`, which `text` and `report` show. `crosscheck` compares a device with NumPy, `lint` looks for habits that cost time or bits,
`recording` has the profiler's traces, and `doctor` tries what there is on a machine.
"""
