"""Compile jaxprs to programs that a target generates code for.

Read `pipeline` first: it names every pass in order. `target` says what the compiler knows of a target, and `program` what the target gets.
`passes` rewrite a jaxpr into a simpler one, `ir` defines kernels (loop nests over scalar operations), `fusion` groups equations into
kernels, `lowering` makes kernels of equations, and `buffers` assigns memory. `contractions` describes matrix products and convolutions for
all targets. `verification` checks what all of these make.
"""
