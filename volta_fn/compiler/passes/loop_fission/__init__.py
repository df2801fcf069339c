"""Loop fission: products that a scan's steps do not wait for leave it, and are done for all steps at once.

A step's product of a few rows reads its whole matrix for little work; the same products of all steps are one of many rows. So products of
the scanned rows alone go before the loop (`hoist`), those that only stacked outputs need go behind it (`sink`), and sums over the steps
of products, as the gradients of weights are, become products that sum over the steps as well (`batch_reductions`). These round differently.

For targets that would rather not copy, what a scan stacks of its carry as each step gets it is made behind it, too (`delay_stacks`).

`scan_view` tells what a scan's variables are outside of it, and `fission` does all of this to a program.
"""
