"""Type checkers read `assertions.py`; the search for doctests must not import it, as it would run."""

collect_ignore = ["assertions.py"]
