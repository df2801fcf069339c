"""Elementwise functions: `arithmetic`, `bitwise`, `logic` and `transcendental`."""
