"""Recurrent networks: `cells` make one step, `layers` run them over sequences."""
