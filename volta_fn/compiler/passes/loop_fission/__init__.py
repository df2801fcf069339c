"""Loop fission: products that a scan's iterations do not wait for leave it.

They are computed for all iterations at once. A product of a few rows reads all of its matrix for little work; the same products of all
iterations are one of many rows. So products of the scanned rows alone go before the loop, those that only stacked outputs need go after it
(`move_products`), and sums over the iterations of products, as the gradients of weights are, become products that sum over the iterations
as well (`batch_reductions`). These round differently.

`delay_stacks`, for targets that would rather not copy, computes what a scan stacks of its carry as each iteration gets it after the loop.
`scan_view` gives a scan's variables as they are outside of it.
"""
