# Rosetta Attention. `make help` lists the targets; each sets up what it needs and is missing.

PYTHON ?= python3
# Narrow everything, the set-up included: make compare PORTS=rust,julia OPS=sdpa
PORTS ?=
OPS ?=

comma := ,
PORT_FLAGS := $(if $(PORTS),--ports "$(PORTS)")
FLAGS := $(PORT_FLAGS) $(if $(OPS),--ops "$(OPS)")
CONFORMANCE := .venv/bin/conformance
# Looks for the toolchains, names all that are missing, then installs what the checkout lacks for a purpose.
SET_UP = @command -v $(PYTHON) >/dev/null || { PYTHON=$(PYTHON) sh scripts/toolchains.sh python \
	$(if $(PORTS),$(filter rust julia,$(subst $(comma), ,$(PORTS))),rust julia); exit 1; }; \
	$(PYTHON) scripts/setup.py $(PORT_FLAGS) --for

# Images of containers set it: then every port compiles NumPy or PyTorch anew at each start. Empty is unset.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
N ?= 2000
SEED ?= 0
PEERS := onnxruntime,onnxruntime-web,tfjs
.PHONY: help setup build fixtures test-all conform peers conform-peers fuzz memory decode bench compare browser serve-browser aarch64 site fmt lint clean

help: ## list the targets
	@echo "make TARGET [PORTS=python,torch,rust,typescript,julia] [OPS=softmax,sdpa,mha,kv_cache]"
	@echo
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "  %-10s %s\n", $$1, $$2 }'
	@echo
	@echo "PORTS narrows what is set up and run, OPS what is asked. $(CONFORMANCE) --help is the command line behind them."

compare: ## the main job: judge and time every port, print the table, write site/index.html
	$(SET_UP) run
	@$(CONFORMANCE) compare $(FLAGS)

test-all: ## every test: lint, each language's own suite, the harness's, the conformance run
	$(SET_UP) test
	@.venv/bin/python scripts/test_all.py $(FLAGS)

conform: ## run every port over every case that it claims, and judge
	$(SET_UP) run
	@$(CONFORMANCE) run $(FLAGS)

peers: ## the same for the libraries that people use instead, on the public vectors, beside our ports on the page
	@$(MAKE) --no-print-directory conform-peers PORTS=$(if $(PORTS),$(PORTS),$(PEERS))

conform-peers:
	$(SET_UP) run
	@status=0; $(CONFORMANCE) run $(FLAGS) --match 'onnx/*' --report site/peers.jsonl || status=$$?; \
	$(CONFORMANCE) site && exit $$status

fuzz: ## N=2000 random questions to every port, SEED=0 for a new seed; a disagreement becomes a case
	$(SET_UP) run
	@$(CONFORMANCE) fuzz --count $(N) --seed $(SEED) $(FLAGS)

memory: ## measure how the memory of plain and tiled attention grows with the length
	$(SET_UP) run
	@$(CONFORMANCE) memory $(PORT_FLAGS)

decode: ## measure what a KV cache saves (many minutes; `conformance decode --quick`: seconds), and draw the page
	$(SET_UP) run
	@status=0; $(CONFORMANCE) decode $(PORT_FLAGS) || status=$$?; $(CONFORMANCE) site && exit $$status

bench: ## time the ports against each other
	$(SET_UP) run
	@$(CONFORMANCE) bench $(FLAGS)

site: ## draw site/index.html from the last reports
	$(SET_UP) run
	@$(CONFORMANCE) site $(FLAGS)

browser: ## the TypeScript library in a page of your own browser: every rung timed and checked on a shape you pick
	@$(MAKE) --no-print-directory serve-browser PORTS=typescript

serve-browser:
	$(SET_UP) run
	@.tools/bin/node typescript/tools/serve_page.ts

aarch64: ## what test-all leaves out: the NEON kernels, compiled, and tested where there is an emulator; minutes
	@sh scripts/aarch64.sh

fixtures: ## make the generated cases, and prove that the committed ones are what the code makes
	$(SET_UP) run
	@$(CONFORMANCE) fixtures $(FLAGS)

lint: ## formatters (checking only), linters and type checkers of every language
	$(SET_UP) lint
	@.venv/bin/python scripts/lint.py $(PORT_FLAGS)

fmt: ## format the sources of every language
	$(SET_UP) lint
	@.venv/bin/python scripts/lint.py $(PORT_FLAGS) --fix

build: ## set up and build the ports, no more
	$(SET_UP) run

setup: ## set up all that development needs, tests and linters included
	$(SET_UP) test

clean: ## remove all that these targets made: environments, tools, builds, generated cases, pages
	rm -rf .venv .tools site conformance/.cache conformance/peers/*/node_modules rust/target rust/peers/target typescript/node_modules typescript/dist
	rm -f rust/attention-py/python/rosetta_attention_rs/*.so julia/Manifest.toml typescript/src/wasm/binary.ts
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find scripts python conformance docs rust -name __pycache__ -o -name '*.egg-info' | xargs rm -rf
