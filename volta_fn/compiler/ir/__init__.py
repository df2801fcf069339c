"""Define kernels and programs of kernel calls: what targets generate code from.

A kernel is a loop nest over scalar operations. In the order in which to read: `index` (affine indices, and views, which are equations that
only change indices), `kernel` (the kernel IR, kernels made of nodes of others, kernels as text, the nodes of a fused program; when a
kernel is well formed, and an interpreter in NumPy), and `axes` (kernels in as few axes as possible, offsets and dependences, and kernels
split for large arrays).
"""
