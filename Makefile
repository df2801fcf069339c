# The commands of the project. Each makes its own virtual environment in .venv first; all it needs is Python with venv and pip.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python

.PHONY: demo test bench clean

# Train a small network on handwritten digits and print its accuracy: make demo ARGS="--data DIR" for MNIST's files.
demo: $(VENV)/examples.stamp
	$(RUN) examples/digits.py $(ARGS)

# Linter, type checker, tests: make test ARGS="-k tree" for some of the tests.
test: $(VENV)/test.stamp
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(RUN) -m pytest $(ARGS)

# Speed beside JAX and PyTorch.
bench: $(VENV)/benchmarks.stamp
	$(RUN) -m benchmarks $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info

$(VENV)/%.stamp: pyproject.toml | $(VENV)/bin/python
	$(RUN) -m pip install --quiet --disable-pip-version-check --editable ".[$*]"
	touch $@

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
