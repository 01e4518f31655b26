# Rubelet's chores. `make test` and `make run` install what they need and work on a fresh machine.

export CARGO_TARGET_DIR ?= $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/rubelet/target

.PHONY: parts
## parts: prepare the real programs and images that tests and `make run` use
parts:
	parts/prepare
