"""See inside a program: `explain`, `crosscheck`, `lint`.

In the order in which to read: `explain` is the entry point; it also lists what a backward pass keeps. `explanation` is its result: for each
item of a program the equations and lines of the user, the operations and bytes, and the changes by each pass; `report` shows it as text or
as a page. `crosscheck` compares a device
with NumPy, by the 64-bit results and tolerances of `reference`. `lint` looks for patterns that cost time or digits.
"""
