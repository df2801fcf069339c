"""Assign memory to values, and write the commands of a program.

In the order in which to read: `memory_layout` (values in one block of memory), `buffer_assignment` (slots, which stand for the memory of
values until their number is known), `emit` (a lowered program's commands), and `plan` (the straight-line program that NumPy runs).
"""
