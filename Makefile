# One command each; the first run sets up a virtual environment in .venv.
VENV   ?= .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
WORKERS ?= 2
READY  := $(VENV)/.netkit-ready

# Variables that point TLS at a bundle of the machine would reach into tests that verify certificates. Programs that
# tests start would compile all they import anew if nothing may be written.
CLEAN  := env -u PYTHONDONTWRITEBYTECODE -u REQUESTS_CA_BUNDLE -u CURL_CA_BUNDLE -u SSL_CERT_FILE -u SSL_CERT_DIR \
          -u HTTP_PROXY -u HTTPS_PROXY -u ALL_PROXY -u NO_PROXY -u http_proxy -u https_proxy -u all_proxy -u no_proxy

.PHONY: demo test conformance check bench docs compat storm clean

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "netkit needs Python 3.11 or newer: make PYTHON=python3.12 …"; exit 1; }
	@if command -v uv >/dev/null 2>&1; then \
	  uv venv --quiet --allow-existing --python $(PYTHON) $(VENV) && \
	  uv pip install --quiet --python $(BIN)/python -e '.[dev]'; \
	else \
	  $(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'; \
	fi
	@touch $@

demo: $(READY)
	$(CLEAN) $(BIN)/netkit demo

test: $(READY)
	$(CLEAN) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

# Every plugin on every face over both protocols; `make test` leaves out what takes the same way twice.
conformance: $(READY)
	$(CLEAN) NETKIT_CONFORMANCE=full $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal tests/conformance $(PYTEST_ARGS)

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright

bench: $(READY)
	$(CLEAN) $(BIN)/python -m tests.benchmarks

compat: $(READY)
	$(CLEAN) $(BIN)/python -m tests.compat

storm: $(READY)
	$(CLEAN) $(BIN)/python -m tests.storm

docs: $(READY)
	$(CLEAN) $(BIN)/python -m docs.build

clean:
	rm -rf $(VENV) .compat .pytest_cache .mypy_cache .ruff_cache .hypothesis docs/_build demo-report.html
