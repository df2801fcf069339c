"""Loop fission: products that a scan's iterations do not wait for leave it.

They are computed for all iterations at once. A product of a few rows reads all of its matrix for little work; the same products of all
iterations are one of many rows. So products of the scanned rows alone go before the loop, those that only stacked outputs need go after it
(`move_products`), and sums over the iterations of products, as the gradients of weights are, become products that sum over the iterations
as well (`batch_reductions`). These round differently.

`delay_stacks`, a pass that targets may add, takes the stack of a carry before each iteration from that of the carry after each iteration.
`scan_view` relates the variables of a scan's body to those outside.
"""
