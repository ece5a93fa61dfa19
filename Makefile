# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
# the versions to install; `make test CONSTRAINTS= TORCH=torch` takes the newest
CONSTRAINTS ?= -c constraints.txt
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# byte code is kept whatever the environment says: half the start is rewriting assertions
PYTEST := HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q

.PHONY: demo test all-tests test-fast lint lock licences site clean

demo: $(STAMP)  ## run the whole loop on the embedded world; then open runs/demo/report/index.html
	@echo "The demo takes about 10 minutes on two idle cores, and continues where it was stopped."
	$(BIN)/flipbench demo

test: $(STAMP)  ## tests, types, style
	# at once, since the tests wait now and then
	$(MAKE) -j2 all-tests lint

all-tests: $(STAMP)
	$(PYTEST) -n auto --dist worksteal

test-fast: $(STAMP)  ## the quick tests
	$(PYTEST) -n auto -m "not slow"

lint: $(STAMP)
	$(BIN)/mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

$(STAMP): pyproject.toml constraints.txt
	@echo "Installing flipbench and what its tests need into $(VENV): 3.1 GB with a CPU build of torch, once."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q "$(TORCH)" $(CONSTRAINTS)
	$(BIN)/pip install -q -e ".[dev]" $(CONSTRAINTS)
	# a torchvision beside a CPU-only torch breaks peft, so what needs it lives apart
	$(BIN)/pip install -q --no-deps --target $(VENV)/controlnet-aux $(CONSTRAINTS) \
		controlnet-aux torchvision timm einops
	touch $@

lock: $(STAMP)  ## requirements.lock: the tested versions with the hashes of their files
	$(BIN)/python .ci/lock.py

licences: $(STAMP)  ## the licences of all dependencies that are installed
	@$(BIN)/python .ci/licences.py

site: $(STAMP)  ## the documentation as a site in build/site, with the demo's report if there is one
	NO_MKDOCS_2_WARNING=1 DISABLE_MKDOCS_2_WARNING=true $(BIN)/mkdocs build --strict
	@echo "To read and search it: $(BIN)/python -m http.server -d build/site, then http://localhost:8000"

clean:
	rm -rf $(VENV) runs build *.egg-info .mypy_cache .ruff_cache .pytest_cache
