"""Define kernels and programs of kernel calls: what targets generate code from.

A kernel is a loop nest over scalar operations. In the order in which to read: `index` (affine indices, and views, which are equations that
only change indices), `kernel` (the kernel IR, when a kernel is well formed, kernels as text, and an interpreter in NumPy), `nodes` (the
items of a lowered program, kernels that are matrix products, and the primitives of attention), and `axes` (kernels in as few axes as
possible, offsets and dependences, and kernels split for large arrays).
"""
