"""Commands: what a compiled program is to the executor, an array of 64-bit words.

A program works on a *table* of pointers, whose entries are *slots*: the caller's arrays, constants, places in the program's own memory
(the *arena*), and slots whose pointers commands set. Commands follow one another; those that hold others say how many words these take.

====== ==========================================================================================================================
RUN    function, tasks, shared, n, slot…: do a routine's phase; on several threads if `shared`.
HOST   function: call ``i64 function(ptr table)``; a result other than 0 ends the program.
COPY   to, from, bytes: copy memory.
POINT  to, from: make a slot point to where another does.
SWAP   a, b: exchange two slots' pointers.
ROW    to, base, bytes, counter: make a slot point to row number ``counter`` of the array at `base`, rows of so many bytes.
LOOP   count, counter, first, step, words: do the commands in the next `words` words `count` times; counter goes first, first + step, …
WHILE  slot, words of condition, words of body: do the condition, and while the bool at `slot` is true the body and the condition.
SWITCH slot, n, words…: of the n bodies that follow, do that whose number (int32, clamped) is at `slot`.
====== ==========================================================================================================================

A *counter* is a slot too, which holds a number in place of a pointer.
"""

from __future__ import annotations

from enum import IntEnum


class Op(IntEnum):
    """The first word of a command."""

    RUN = 0
    HOST = 1
    COPY = 2
    POINT = 3
    SWAP = 4
    ROW = 5
    LOOP = 6
    WHILE = 7
    SWITCH = 8


#: The most buffers of a routine.
MOST_BUFFERS = 512
