# The commands of hccl_py: install, demo, test, lint, lock, clean. Needs Python 3.10 to 3.13, a C++20 compiler and make.
PYTHON ?= python3
SHELL := /bin/bash
.DELETE_ON_ERROR:
.PHONY: help install demo test bench-cpu bench-gpu bench-topology bench-scheduler bench-compression bench-torch lint lock clean

# What Open MPI needs to run as root and with more ranks than cores; harmless elsewhere. MPICH needs nothing.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
export PRTE_MCA_rmaps_default_mapping_policy := :oversubscribe
export PRTE_MCA_hwloc_default_binding_policy := none
export OMPI_MCA_mpi_yield_when_idle := 1

# Two lock files: newer releases of numpy and others have left Python 3.10.
MINOR := $(shell $(PYTHON) -c 'import sys; print(sys.version_info[1] if sys.version_info[0] == 3 else 0)')
ifeq ($(filter 10 11 12 13,$(MINOR)),)
$(error hccl_py needs Python 3.10 to 3.13; $(PYTHON) is not one of them: make PYTHON=python3.11)
endif
LOCK := requirements/python3.$(if $(filter 10,$(MINOR)),10,11).lock

# pip would compile all of torch to bytecode, one file after the other; only what is used here is compiled, by importing
# it once (also where Python is told to write no bytecode: four ranks that compile the same at each start are slow).
PIP := -m pip install --quiet --no-compile --no-input
COMPILE := env -u PYTHONDONTWRITEBYTECODE .venv/bin/python -W ignore -c
USED := torch._dynamo, torch.distributed.run, torch.distributed.fsdp, torch.distributed.tensor, \
  torch.distributed.checkpoint, sklearn.datasets, matplotlib.figure, hypothesis, pytest, pydantic, networkx, typer.rich_utils
VENV := .venv/.locked-3.$(MINOR)
MPICH := .venv-mpich/.locked-3.$(MINOR)
NATIVE := pyproject.toml CMakeLists.txt $(shell find native -name '*.cpp' -o -name '*.hpp' -o -name CMakeLists.txt)

help:
	@echo 'make install   .venv (Open MPI) and .venv-mpich, with the native engine built'
	@echo 'make demo      four ranks train over gloo and over hccl_py, then the all-reduce benchmark; pictures in out/demo/'
	@echo 'make test      all tests (TESTS="tests/unit -k ring" for some)'
	@echo 'make bench-cpu measure against Open MPI, MPICH and gloo (PART="two,torch" for some, TABLES=1 for the tables in docs)'
	@echo 'make bench-topology   plans, simulator and lab (PART="configs,rail" for some, TABLES=1 for the table in docs)'
	@echo 'make bench-scheduler  buckets, policy, training in the lab and the simulator (PART="events,simulation" for some)'
	@echo 'make bench-compression   codecs, compressed collectives and trainings (PART="codecs" for some)'
	@echo 'make bench-torch  torch test files, mpi4py benchmarks (DEMOS=FOLDER), contract check (PART="contract" for some)'
	@echo 'make bench-gpu measure against NCCL, on a machine with two GPUs (PART=all_reduce, others, ddp, tcp or random for some)'
	@echo 'make lint      ruff and mypy'
	@echo 'make lock      resolve requirements/dev.in anew into $(LOCK)'
	@echo 'make clean     remove the environments and everything that was built'

install: .venv/.project .venv-mpich/.project

$(VENV): $(LOCK)
	@echo '[1/4] .venv: Python 3.$(MINOR), the locked packages, Open MPI'
	@$(PYTHON) -m venv --clear .venv
	@.venv/bin/python $(PIP) -r $(LOCK)
	@$(COMPILE) 'import $(USED)'
	@touch $@

.venv/.project: $(VENV) $(NATIVE)
	@echo '[2/4] .venv: hccl_py, editable, with its native engine'
	@.venv/bin/python $(PIP) --no-build-isolation --no-deps --editable .
	@touch $@

$(MPICH): $(LOCK) requirements/mpich.in
	@echo '[3/4] .venv-mpich: the same with MPICH'
	@$(PYTHON) -m venv --clear .venv-mpich
	@.venv-mpich/bin/python $(PIP) --constraint $(LOCK) --requirement requirements/mpich.in
	@touch $@

# The second environment gets the wheel of the first one's build: nothing is compiled twice.
.venv-mpich/.project: $(MPICH) .venv/.project
	@echo '[4/4] .venv-mpich: hccl_py, the same build'
	@rm -rf build/editable && mkdir -p build/editable
	@PATH="$(CURDIR)/.venv/bin:$$PATH" .venv/bin/python -c \
	  'from scikit_build_core.build import build_editable; build_editable("build/editable")' > build/editable.log 2>&1 \
	  || { cat build/editable.log; exit 1; }
	@.venv-mpich/bin/python $(PIP) --no-deps --no-index --force-reinstall build/editable/*.whl
	@touch $@

demo: install
	@.venv/bin/hccl-py demo

test: install
	@mkdir -p build; rm -f build/test.exit
	@$(if $(TESTS),,nice -n 19 .venv/bin/python tests/native/build.py address thread > build/native-tests.log 2>&1 &)
	@.venv/bin/python -m pytest $(TESTS) || { code=$$?; echo $$code > build/test.exit; exit $$code; }

# With the system's python, which has the PyTorch for its GPUs; hccl_py must be importable there. 77: no two GPUs.
bench-gpu:
	@$(PYTHON) tests/perf/gpu/bench.py --part="$(PART)" $(if $(TABLES),--tables)

bench-cpu: install
	@.venv/bin/python tests/perf/cpu_bench.py --part="$(PART)" $(if $(RESUME),--resume) $(if $(TABLES),--tables)

bench-topology: install
	@.venv/bin/python tests/perf/bench_topology.py --part="$(PART)" $(if $(TABLES),--table)

bench-compression: install
	@.venv/bin/python tests/perf/compression_bench.py --part="$(PART)"

bench-torch: install
	@.venv/bin/python tests/perf/torch_bench.py --part="$(PART)" --demos="$(DEMOS)"

bench-scheduler: install
	@.venv/bin/python tests/perf/scheduler_bench.py --part="$(PART)"

lint: install
	@.venv/bin/ruff check .
	@.venv/bin/mypy

lock:
	@rm -rf build/lock && $(PYTHON) -m venv build/lock
	@build/lock/bin/python $(PIP) --upgrade pip
	@build/lock/bin/python $(PIP) -r requirements/dev.in
	@{ sed -n '/^#/p' $(LOCK); build/lock/bin/python -m pip list --format=freeze | sed -e '/^pip==/d' -e 's/+.*//' \
	  | LC_ALL=C sort -f; } > build/lock.new
	@mv build/lock.new $(LOCK) && rm -rf build/lock
	@echo 'wrote $(LOCK)'

clean:
	@rm -rf .venv .venv-mpich build out dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
