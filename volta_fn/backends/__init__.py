"""Program → machine: whatever runs programs on a device. No backend knows of transforms.

`platforms` registers the devices, whose backends are loaded on first use. The CPU is one device (`cpu`) with two ways of running
programs: `numpy`, which defines the semantics of every primitive, and `native`, compiled machine code. `wgsl` serves every GPU. Both code
generators share `scalars` (formulas) and `geometry` (index arithmetic); `folder` is the cache on disk.
"""
