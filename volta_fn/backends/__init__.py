"""Plan → machine: whatever runs programs on a device; none of it knows a transform.

`platforms` registers the devices, which are loaded when they are first asked for. The CPU is one device (`cpu`) with two ways of running
programs: `numpy`, which is the meaning of every primitive, and `native`, machine code. `wgsl` is every GPU. What generates code shares
`scalars` (formulas) and `geometry` (where elements are); `folder` is where compiled things are kept.
"""
