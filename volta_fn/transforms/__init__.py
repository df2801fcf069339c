"""Function → function: differentiation, vectorization, and what steers them."""
