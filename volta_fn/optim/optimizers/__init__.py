"""Optimizers under their usual names: chains of transformations.

`sgd` has those without second moments, `adam` the Adam family, `rms` those that divide by roots of squares without bias correction;
`muon` and `lbfgs` hold Muon and L-BFGS with their own transformations.
"""
