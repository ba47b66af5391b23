# `make demo` and `make test` install what they need first; `make` alone lists all targets.

PYTHON ?= python3
PYTEST_ARGS ?=
BENCH ?= convert
BENCH_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
EXTRAS := convert hdf5 matlab bands medical tf transform gcs hdfs s3 azure web dataflow openlineage grain jax dev
# A file of tests is one unit of work, so its fixtures are made once; in the order of the folders the long files come first.
# A worker that dies is not replaced: xdist would run the test that killed it again and again.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 -ra
# Of tools that the tests run: each .in is resolved into a .txt.
ENVIRONMENTS := $(wildcard tests/servers/environments/*.in)
SITE_LOCK := tests/servers/environments/site.txt
SITE_ENV := build/site-env

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The environment of a checkout is its own, so Python may keep what it compiles there. Without that each process of the
# tests compiles again what it imports: Beam takes 4 s instead of 1.7 s, TensorFlow 9 s instead of 3 s.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test wheel wheel-test sanitize images-test report-test schedulers-test clusters-test torch-test site site-test chromium servers unit lint bench docs lock clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1#\2/p' $(MAKEFILE_LIST) | awk -F'#' '{ printf "%-23s%s\n", $$1, $$2 }'
	@echo "The environment is $(VENV), made with $(PYTHON). To use another Python: make PYTHON=python3.12 demo"

demo: $(INSTALLED) ## convert a small set of images, verify it and read it back as batches
	@$(BIN)/python examples/demo.py

test: $(INSTALLED) servers ## run all tests; tests skip if their server is not installed (PYTEST_ARGS=...)
	@$(PYTEST) $(PYTEST_ARGS)

images-test: $(INSTALLED) ## build the images without Docker and try them; needs root, buildah and mmdebstrap (minutes, 10 GB of disk)
	@if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && ! { command -v buildah && command -v mmdebstrap; } > /dev/null; then \
	  { apt-get update --quiet=2 && apt-get install --quiet=2 --yes --no-install-recommends buildah mmdebstrap; } > /dev/null \
	  || echo "apt-get could not install buildah and mmdebstrap: the tests will be skipped" >&2; \
	fi
	@$(BIN)/python -m pytest -ra -o faulthandler_timeout=1800 $(PYTEST_ARGS) tests/integration/images.py

report-test: $(INSTALLED) chromium ## open report.html in Chromium; nothing may be loaded, and no error logged (seconds)
	@$(BIN)/python -m pytest -ra $(PYTEST_ARGS) tests/integration/report_browser.py

schedulers-test: $(INSTALLED) ## run the files of deploy/ in Airflow, Kubeflow's compiler, Kubernetes' schemas and systemd (minutes)
	@if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && ! command -v systemd-analyze > /dev/null; then \
	  { apt-get update --quiet=2 && apt-get install --quiet=2 --yes --no-install-recommends systemd; } > /dev/null \
	  || echo "apt-get could not install systemd: the tests of its units will be skipped" >&2; \
	fi
	@$(BIN)/python -m pytest -ra -o faulthandler_timeout=1800 $(PYTEST_ARGS) tests/integration/scheduler_files.py tests/integration/scheduler_airflow.py

clusters-test: $(INSTALLED) servers ## convert on a Flink and on a Spark cluster of this machine (20 minutes, 320 MB of jars)
	@$(BIN)/python -m pytest -ra -o faulthandler_timeout=1800 $(PYTEST_ARGS) tests/integration/cluster_runners.py

torch-test: $(INSTALLED) ## read with PyTorch, without a GPU, which is installed beside the environment (minutes, 1.3 GB)
	@$(BIN)/python -m pytest -ra $(PYTEST_ARGS) tests/integration/torch_*.py

site: $(SITE_ENV)/.installed ## build the documentation as a site into build/site; a warning or a broken link is an error
	@PATH="$(CURDIR)/$(SITE_ENV)/bin:$$PATH" NO_MKDOCS_2_WARNING=1 mkdocs build --strict
	@echo "the site is in build/site; to look at it: $(BIN)/python -m http.server --directory build/site"

site-test: site chromium ## open pages of the site in Chromium, at the width of a phone and of a desk (a minute)
	@$(BIN)/python -m pytest -ra $(PYTEST_ARGS) tests/integration/site_browser.py

chromium:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && ! command -v chromium > /dev/null; then \
	  { apt-get update --quiet=2 && apt-get install --quiet=2 --yes --no-install-recommends chromium; } > /dev/null \
	  || echo "apt-get could not install chromium: the tests in a browser will be skipped" >&2; \
	fi

wheel: $(INSTALLED) ## build the source distribution, and from it a wheel with all its libraries for this Linux, into dist/
	@rm -rf build/wheel dist
	@IMAGEBEAM_REQUIRE_C=1 $(BIN)/python -m build --no-isolation --outdir build/wheel . > build/wheel.log 2>&1 \
	  || { tail -20 build/wheel.log >&2; exit 1; }
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --strip --wheel-dir dist build/wheel/*.whl >> build/wheel.log 2>&1
	@cp build/wheel/*.tar.gz dist
	@ls dist

wheel-test: wheel ## try both in a Debian without compiler and libraries; needs root and mmdebstrap (minutes)
	@if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && ! command -v mmdebstrap > /dev/null; then \
	  { apt-get update --quiet=2 && apt-get install --quiet=2 --yes --no-install-recommends mmdebstrap; } > /dev/null \
	  || echo "apt-get could not install mmdebstrap: the tests of the wheel will be skipped" >&2; \
	fi
	@$(BIN)/python -m pytest -ra $(PYTEST_ARGS) tests/integration/wheel.py

sanitize: $(INSTALLED) ## test the code in C with gcc's sanitizers, also with changed inputs (FUZZ_SECONDS=60 FUZZ_SEED=1)
	@.ci/sanitize

servers: ## install Java, Maven and npm for the servers of the tests; needs root on Debian or Ubuntu
	@if command -v java > /dev/null && command -v mvn > /dev/null && command -v npm > /dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	  echo "installing default-jdk-headless, maven and npm, for the tests with HDFS, Flink, Spark and Azure"; \
	  { apt-get update --quiet=2 && apt-get install --quiet=2 --yes --no-install-recommends default-jdk-headless maven npm libgssapi-krb5-2; } > /dev/null \
	  || echo "apt-get could not install them: the tests with HDFS, Flink, Spark and Azure will be skipped" >&2; \
	else echo "the tests with HDFS, Flink, Spark and Azure will be skipped; to run them: apt-get install default-jdk-headless maven npm" >&2; fi

unit: $(INSTALLED) ## run the unit tests, except those marked slow
	@$(PYTEST) -m "not slow" $(PYTEST_ARGS) tests/unit

lint: $(INSTALLED) ## check lint rules, format and types; changes nothing
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: $(INSTALLED) ## run a benchmark and print JSON (BENCH=convert BENCH_ARGS="--count 2000 --rounds 1")
	@$(BIN)/python -m benchmarks.$(BENCH) $(BENCH_ARGS)

lock: $(INSTALLED) ## resolve setup.py into requirements.lock, and the tests' tools; for the newest versions: make lock UPGRADE=--upgrade
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.10 --no-python-downloads $(UPGRADE) \
	  $(EXTRAS:%=--extra %) --no-annotate --no-emit-index-url --custom-compile-command 'make lock' \
	  --output-file requirements.lock setup.py > /dev/null
	@for each in $(ENVIRONMENTS); do \
	  $(BIN)/uv pip compile --quiet --universal --python-version 3.10 --no-python-downloads $(UPGRADE) \
	    --no-annotate --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' \
	    --output-file $${each%.in}.txt $$each > /dev/null || exit 1; \
	done

docs: $(INSTALLED) ## regenerate docs/config.md and docs/config.schema.json from the config's models
	@$(BIN)/python -m imagebeam.pipelines.config.schema

clean: ## remove the files of builds and checks; keeps the environment (to remove it: rm -rf .venv)
	@rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c '' || { \
	  echo "$(PYTHON) was not found; imagebeam needs Python 3.10 to 3.13: install it, or name another with make PYTHON=..." >&2; \
	  exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' || { \
	  echo "$(PYTHON) is $$($(PYTHON) --version 2>&1); imagebeam needs Python 3.10 to 3.13: name another with make PYTHON=..." >&2; \
	  exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || { \
	  package=$$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
	  echo "$(PYTHON) cannot make a virtual environment; on Debian and Ubuntu this needs another package: apt-get install $$package" >&2; \
	  exit 1; }
	@$(PYTHON) -m venv $(VENV)

# Runs again only after a change of the lock, setup.py or the code in C, and then updates the environment. uv takes
# 25 s, pip two minutes. But uv does not read pip's configuration, so pip installs if it names an index, or if uv fails.
$(INSTALLED): requirements.lock setup.py $(wildcard imagebeam/*.c imagebeam/*.h) | $(BIN)/python
	@if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && ! [ -e /usr/include/turbojpeg.h ]; then \
	  echo "installing a C compiler and libjpeg-turbo, for the code in C"; \
	  { apt-get update --quiet=2 && apt-get install --quiet=2 --yes --no-install-recommends gcc libc6-dev libjpeg-dev libpng-dev libturbojpeg0-dev; } > /dev/null \
	  || echo "apt-get could not install them: without them imagebeam is slower (docs/reader-speed.md)" >&2; \
	fi
	@echo "installing requirements.lock into $(VENV) (3 GB): about half a minute on a fast network"
	@if ! $(BIN)/python -m pip config list | grep -q index \
	  && $(BIN)/python -m pip install --quiet --constraint requirements.lock uv \
	  && $(BIN)/uv pip install --quiet --no-python-downloads --python $(BIN)/python --requirements requirements.lock; \
	then :; else \
	  echo "pip installs it instead of uv: two to five minutes"; \
	  $(BIN)/python -m pip install --quiet --requirement requirements.lock; \
	fi
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# The tools of the site are apart: they want other versions than the lock.
$(SITE_ENV)/.installed: $(SITE_LOCK) | $(INSTALLED)
	@rm -rf $(SITE_ENV) && $(BIN)/python -m venv $(SITE_ENV)
	@if $(BIN)/python -m pip config list | grep -q index \
	  || ! $(BIN)/uv pip install --quiet --no-python-downloads --python $(SITE_ENV)/bin/python --requirements $(SITE_LOCK); \
	then $(SITE_ENV)/bin/python -m pip install --quiet --requirement $(SITE_LOCK); fi
	@touch $@
