"""Verify what the compiler does: programs after each pass, kernels, and memory.

Verifiers find an error where it arises, before it becomes a wrong number. They run if `settings.verify` is set, as in all tests and by
`VOLTA_VERIFY=1`, and raise `CompilerError`, which names the pass, the equation and the user's line. `programs` verifies that a pass leaves
a program well formed, with the same effects and types of outputs; `kernels` that each kernel stays within its arrays, defines its values
before their use and stores each output once; `memory` that no result is stored in memory whose value is read later.
"""
