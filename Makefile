# The commands of the project. Each makes its own virtual environment in .venv first; all it needs is Python with venv and pip.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python

# Tests of the semantics of primitives, layers and random programs, which also run on a GPU.
PRIMITIVES := tests/test_registry.py tests/test_registry_elementwise.py
ON_GPU := $(PRIMITIVES) tests/test_random_programs.py tests/test_nan_and_empty.py tests/nn tests/optim
# Of the tests that take long (`_HEAVY` in conftest.py), `make test` has one in so many, other ones after each commit: HEAVY_EVERY=1 for all.
HEAVY_EVERY ?= 8
SHIFT := --shift `git rev-list --count HEAD 2> /dev/null || echo 0`
# Widths of vectors that are narrower than this CPU's widest.
NARROWER := from volta_fn.runtime.llvm.host import vector_widths; print(*vector_widths()[:-1])

LINT = $(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check --quiet . && $(VENV)/bin/codespell
# Run a command with the type checker beside it, which uses one core; its report comes last.
with_types = $(VENV)/bin/mypy > $(VENV)/mypy.log & types=$$!; $(1); tests=$$?; \
	wait $$types; types=$$?; cat $(VENV)/mypy.log; exit $$((tests | types))

# Bytecode is written even where the environment says otherwise: each process would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo examples check test test-gpu test-vectors test-pythons sample docs dist bench clean

# Train a small network on handwritten digits and print its accuracy: make demo ARGS="--data DIR" for MNIST's files.
demo: $(VENV)/examples.stamp
	$(RUN) examples/digits.py $(ARGS)

# Run every example in full: make examples DATA=DIR with the folders mnist, text and models in DIR, else on small data.
examples: $(VENV)/examples.stamp
	for name in xor regression time_series spiral_ode curve_gp banana_hmc heat_equation moon_diffusion pole_balancing maml dp_sgd \
	    inference_server; do $(RUN) examples/$$name.py || exit 1; done
	for name in mnist_cnn mnist_rnn vae dcgan super_resolution; do \
	    $(RUN) examples/$$name.py $(if $(DATA),--data $(DATA)/mnist) || exit 1; done
	for name in char_lstm char_transformer; do \
	    $(RUN) examples/$$name.py $(if $(DATA),--text $(DATA)/text/tinyshakespeare.txt) || exit 1; done
	$(if $(DATA),$(RUN) examples/load_pytorch.py --data $(DATA))

# What a change should pass before it is committed, in less than a minute: linter, type checker, one test in ten.
check: $(VENV)/test.stamp
	$(LINT)
	$(call with_types,$(RUN) -m pytest --every 10 tests)

# Linter, type checker, tests: make test ARGS="-k tree" for some of them, make test HEAVY_EVERY=1 EVERY=1 for all that there are.
test: $(VENV)/test.stamp
	$(LINT)
	$(call with_types,$(RUN) -m pytest $(or $(ARGS),--heavy-every $(HEAVY_EVERY) $(SHIFT)))
	$(if $(ARGS),,$(MAKE) test-vectors test-gpu)

# One in so many of the tests of machine code, the same ones in every run, with narrower vectors than this CPU has: EVERY=1 for all.
test-vectors: EVERY ?= 24
test-vectors: $(VENV)/test.stamp
	for width in `$(RUN) -c "$(NARROWER)"`; do \
	    VOLTA_VECTOR_BYTES=$$width $(RUN) -m pytest --every $(EVERY) tests/targets/cpu tests/runtime || exit 1; done

# One in so many of the tests of semantics, likewise, on the GPU, and with no more than every WebGPU device has: EVERY=1 for all.
test-gpu: EVERY ?= 48
test-gpu: export VOLTA_DEVICE := gpu
test-gpu: export JAX_PLATFORMS := cpu
test-gpu: $(VENV)/test.stamp
	$(RUN) -m pytest --every $(EVERY) $(ON_GPU) $(if $(filter 1,$(EVERY)),tests/examples/test_on_the_gpu.py)
	VOLTA_GPU_LIMITS=webgpu $(RUN) -m pytest --every $(EVERY) $(if $(filter 1,$(EVERY)),$(ON_GPU),$(PRIMITIVES))

# The documentation, in docs/_build/html: every cell runs, every warning is an error, and so is every dead link.
docs: $(VENV)/docs.stamp
	$(RUN) -m sphinx -q -W --keep-going -b html docs docs/_build/html
	$(RUN) tools/check_links.py docs/_build/html

# Speed and memory beside JAX and PyTorch: make bench ARGS="--only conv" for some of it.
bench: $(VENV)/benchmarks.stamp
	$(RUN) -m benchmarks $(ARGS)

# Run a sample of the tests on other Pythons: make test-pythons PYTHONS="python3.12 python3.13" EVERY=10
test-pythons:
	for python in $(PYTHONS); do $(MAKE) sample PYTHON=$$python VENV=$(VENV)/$$(basename $$python) || exit 1; done

sample: EVERY ?= 24
sample: $(VENV)/test.stamp
	$(RUN) -m pytest --every $(EVERY) tests

# The wheel and the source archive of a release, with links to where the project is: make dist ADDRESS=https://example.org/volta_fn
dist: $(VENV)/test.stamp
	$(RUN) tools/dist.py $(ADDRESS)

clean:
	rm -rf $(VENV) build dist *.egg-info docs/_build docs/reference/api

$(VENV)/%.stamp: pyproject.toml | $(VENV)/bin/python
	$(RUN) -m pip install --quiet --disable-pip-version-check --editable ".[$*]"
	touch $@

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
