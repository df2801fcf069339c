"""Functions of single elements: `arithmetic`, `bitwise`, `logic` and `transcendental`."""
