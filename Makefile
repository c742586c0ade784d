# Each target is one command; the scripts it names say what they do. Native builds go through tests/env, which keeps them
# in ~/.cache/proxy-operator, shared by all clones.
.PHONY: help build demo test bench fuzz fmt clippy deny

help: ## this list
	@sed -nE 's/^([a-z]+|test-%):[^#]*## (.*)/\1\t\2/p' Makefile | sed 's/^test-%/test-SUITE/' | expand -t 14
	@echo "suites: $$(tests/run --list | xargs)"

build: ## bin/proxy-operator and bin/plugins/*.wasm, and the tools they need
	@tests/env host/build.sh bin
	@tests/env plugins/build.sh bin/plugins

demo: build ## the operator on this machine alone, with a sandbox cloud
	@bin/proxy-operator demo

test: ## all suites
	@tests/run

test-%: ## one suite
	@tests/run $*

bench: build ## the figures of docs/performance.md
	@tests/env plugins/build.sh --guests bin/guests
	@tests/cluster/build.sh bin/cluster
	@tests/env cargo run --release --locked --package proxy-operator-tests --bin bench

fuzz: ## feeds the plugin loader with made-up files, each target for FUZZ_SECONDS (60)
	@tests/env tests/fuzz/run

fmt: ## formats the code
	@cargo fmt --all
	@rustfmt --edition 2024 tests/fuzz/fuzz_targets/*.rs

clippy: ## lints, where a warning is an error
	@tests/env cargo clippy --release --locked --all-targets -- -D warnings

deny: ## licences, sources and bans of the dependencies
	@.ci/deny
