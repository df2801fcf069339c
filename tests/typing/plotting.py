# pyright: standard
# Matplotlib's own types are too vague for the strict mode.
"""Arrays are plotted as they are."""

import matplotlib.pyplot as plt

import volta_fn.numpy as jnp


def main() -> int:
    """Return the number of lines in a plot."""
    x = jnp.linspace(0.0, 1.0, 5)
    figure, axes = plt.subplots()
    axes.plot(x, x**2)
    axes.scatter(x, x, c=x)
    axes.hist(x)
    plt.close(figure)
    return len(axes.lines)
