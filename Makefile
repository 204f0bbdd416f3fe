# epx: build rules. `make help` lists what can be asked for.
#
# Sources are found by folder, so that adding a file needs no edit here. Objects live under $(BUILD), one folder
# per variant (build, build/asan, ...), and are made again when the compiler or a flag changes.

# Written once, in the public header.
VERSION := $(shell sed -n 's/^\#define EPX_VERSION_[MP][A-Z]* *\([0-9]*\).*/\1/p' include/epx/epx.h | paste -sd.)
SOVERSION := $(firstword $(subst ., ,$(VERSION)) 0)

BUILD ?= build
# An absolute name of a folder in here is the same folder: dependency files name relative paths.
override BUILD := $(patsubst $(CURDIR)/%,%,$(BUILD))
PREFIX ?= /usr/local
DESTDIR ?=
CFLAGS ?= -O2 -g
KERNEL_CFLAGS ?= -O3
WERROR ?= -Werror
# auto, none, or the names of mk/features.txt that may be used
FEATURES ?= auto
# Set by the sanitizer targets: what goes to -fsanitize=
SANITIZE ?=
# Parts to leave out. Sanitizers see nothing of a GPU, their builds are made often, and UCX replaces the allocator.
WITHOUT ?= $(if $(SANITIZE),cuda nccl ucx)
CUDA_HOME ?= /usr/local/cuda
NVCC ?= $(firstword $(shell command -v nvcc) $(wildcard $(CUDA_HOME)/bin/nvcc))
PYTHON ?= python3
JOBS ?= $(shell nproc 2>/dev/null || echo 2)

Q := $(if $(V),,@)
say = $(if $(V),,@printf '  %-6s %s\n' $1 '$(2:$(CURDIR)/%=%)';)

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:

# Where clean goes with other goals, it must be over before the first of them is looked at.
OTHER_GOALS := $(filter-out clean,$(MAKECMDGOALS))
ifeq ($(filter clean,$(MAKECMDGOALS))$(MAKE_RESTARTS),$(if $(OTHER_GOALS),clean,-))
$(shell rm -rf $(BUILD) compile_commands.json)
endif

include mk/sources.mk
include mk/build.mk
include mk/test.mk
include mk/install.mk
include mk/check.mk

.PHONY: all help clean reconfigure
all: $(LIBS) $(JAXLIB) $(PROGRAMS) ## library and programs (the default)

help: ## this list
	@echo 'make [TARGET] [CC=clang] [CFLAGS=...] [FEATURES=none] [BUILD=folder] [V=1]'
	@echo
	@sed -n 's/^\([a-z0-9_.-]*\):[^#]*## \(.*\)/  \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-24s%s\n", $$1, $$2 }'
	@echo
	@echo '  WITHOUT="cuda nccl" leaves optional parts out (FEATURES="ucx hwloc" names those that are to be found);'
	@echo '  DEBUG=1 turns debug assertions on; SUITES="unit multi" picks test folders;'
	@echo '  TEST_ARGS="--filter a/b" goes to the test runners; TEST_JOBS=4 tests, TEST_LANES=2 scripts at a time;'
	@echo '  PREFIX and DESTDIR steer install.'

clean: ## remove all that was built
	$(if $(OTHER_GOALS),@:,$(Q)rm -rf $(BUILD) compile_commands.json)

reconfigure: ## look for optional libraries again
	$(Q)rm -f $(BUILD)/config.mk
	$(Q)$(MAKE) --no-print-directory $(BUILD)/config.mk
