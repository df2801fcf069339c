"""Transformations of other transformations.

`chain` composes them, `masking` limits them to some of the parameters, `conditional` to some of the steps. `multi_steps` accumulates
gradients, `lookahead` averages parameters, `loss_scale` handles float16, `inject_hyperparams` moves hyper-parameters into the state,
`monitoring` measures updates, `sharding` shares states out between processes.
"""
