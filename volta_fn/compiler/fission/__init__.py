"""Loop fission: products that a scan's steps do not wait for leave it, and are done for all steps at once.

A step's product of a few rows reads its whole matrix for little work; the same products of all steps are one of many rows. So products of
the scanned rows alone go before the loop (`before`), those that only stacked outputs need go behind it (`after`), and sums over the steps
of products, as the gradients of weights are, become products that sum over the steps as well (`sums`). These round differently.

For backends that would rather not copy, what a scan stacks of its carry as each step gets it is made behind it, too (`delays`).

`parts` tells what a scan's variables are outside of it, and `products` does all of this to a program.
"""
