"""The CPU by NumPy: always there, and the meaning of every primitive."""
