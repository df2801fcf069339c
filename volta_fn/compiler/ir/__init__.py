"""Define kernels and programs of kernel calls: what targets generate code from.

A kernel is a loop nest over scalar operations. In the order in which to read: `index` (affine indices, and views, which are equations that
only change indices), `kernel` (the kernel IR, and kernels as text), `specification` (when a kernel is well formed, and an interpreter in
NumPy), `nodes` (the items of a lowered program), `axes` (kernels in as few axes as possible, offsets and dependences, and kernels split for
large arrays), and `primitives` (those that only passes introduce).
"""
