# Tests: every folder of tests/ links into one Criterion runner; shell scripts in it run beside.

RUNNERS := $(SUITES:%=$(BUILD)/tests/%)
PLUGINS := $(PLUGIN_SRCS:tests/plugins/%.c=$(BUILD)/tests/plugins/%.so)
TEST_TIMEOUT ?= 600
TEST_ARGS ?=

TSAN_ARENA := $(if $(filter thread,$(SANITIZE)),mk/tsan_arena.c)

# These test the training loop compiled with EPX_TRAIN_DOUBLE, and nothing that is compiled without it.
DOUBLE_SUITES := gradient
test_objects = $(if $(filter $1,$(DOUBLE_SUITES)),$(call objects_double,$2),$(call objects,$2))
test_archives = $(if $(filter $1,$(DOUBLE_SUITES)),$(TRAINLIB_DOUBLE),$(PARTS) $(TRAINLIB))

# runner: $1 suite
define runner
$(if $(CONFIGURED),$(call remember,$(BUILD)/keys/tests-$1,$(strip $(call suite_srcs,$1))))
$(BUILD)/keys/tests-$1: ;
$(BUILD)/tests/$1: $(call test_objects,$1,$(call suite_srcs,$1) $(SUPPORT_SRCS) $(TSAN_ARENA)) \
		$(call test_archives,$1) $(TOOLLIB) $(STATIC) \
		$(FLAGS_KEY) $(BUILD)/keys/tests-$1
	$$(call say,LD,$$@)
	$$(Q)mkdir -p $$(@D)
	$$(Q)$$(CC) $$(LINK_FLAGS) -o $$@ $$(filter %.o %.a,$$^) $$(TEST_FEATURE_LIBS) $$(TRAIN_FEATURE_LIBS) $$(LINK_LIBS)
endef
$(foreach s,$(SUITES),$(eval $(call runner,$s)))

# A plug-in sees the public headers and links against nothing, as one from outside would.
$(BUILD)/tests/plugins/%.so: tests/plugins/%.c $(wildcard include/epx/*.h) $(FLAGS_KEY)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) -std=c11 $(WARNINGS) $(CFLAGS) -fPIC -shared -Iinclude -o $@ $<

.PHONY: check-aarch64 check-rdma check-processes check run-tests bench demo asan ubsan tsan check-gpu sanitize-gpu check-python
check: ## build and run all tests (installs what they need, on Debian)
	$(Q)tools/setup.sh check
	$(Q)$(MAKE) --no-print-directory $(PARALLEL) run-tests

ARM_CC ?= aarch64-linux-gnu-gcc
ARM_RUN ?= qemu-aarch64 -L /usr/aarch64-linux-gnu
check-aarch64: ## cross-compile for 64-bit ARM and run tests with several ranks there, by qemu
	$(Q)tools/setup.sh aarch64
	$(Q)$(MAKE) --no-print-directory $(PARALLEL) BUILD=$(BUILD)/aarch64 CC=$(ARM_CC) AR=$(ARM_CC:gcc=ar) FEATURES=none \
		all $(ARM_SUITES:%=$(BUILD)/aarch64/tests/alone-%) \
		$(PLUGIN_SRCS:tests/plugins/%.c=$(BUILD)/aarch64/tests/plugins/%.so)
	$(Q)TEST_BUILD='$(abspath $(BUILD))/aarch64' mk/check-aarch64.sh '$(ARM_RUN)'

check-processes: ## the conformance suite with a process per rank, all of it over shared memory and over TCP
	$(Q)tools/setup.sh check
	$(Q)$(MAKE) --no-print-directory $(PARALLEL) all $(BUILD)/tests/processes-conformance $(PLUGINS)
	$(Q)TEST_BUILD='$(abspath $(BUILD))' TEST_CC='$(CC)' SANITIZE= PROCESSES=all bash tests/conformance/test_processes.sh

# RDMA=all: all of conformance over rc and over ud too, for many hours; RDMA_PART=I/N: a part of it.
RDMA ?= some
RDMA_PART ?= 1/1
check-rdma: ## real RDMA ports and traffic: soft-RoCE between two virtual machines (fetches Debian's kernel once)
	$(Q)tools/setup.sh rdma
	$(Q)$(MAKE) --no-print-directory $(PARALLEL) all $(BUILD)/tests/processes-conformance $(PLUGINS)
	$(Q)CC='$(CC)' RDMA='$(RDMA)' RDMA_PART='$(RDMA_PART)' mk/check-rdma.sh $(BUILD)

# For use inside other targets: a make started by hand with -j keeps its own number.
PARALLEL = $(if $(findstring -j,$(MAKEFLAGS)),,-j$(JOBS))

# Tests learn from the environment where this build lies; names do not start with EPX_, which are the library's.
run-tests: $(LIBS) $(PROGRAMS) $(RUNNERS) $(PLUGINS) $(if $(filter conformance,$(SUITES)),$(BUILD)/tests/alone-conformance \
		$(BUILD)/tests/processes-conformance)
	$(Q)TEST_BUILD='$(abspath $(BUILD))' TEST_CC='$(CC)' SANITIZE='$(SANITIZE)' TEST_TIMEOUT='$(TEST_TIMEOUT)' \
		TEST_ARGS='$(TEST_ARGS)' mk/run-tests.sh $(RUNNERS) $(SHELL_TESTS)

# Sanitizers look at the tests with several ranks, where the races and the shared buffers are.
SANITIZED_SUITES := $(if $(filter command,$(firstword $(origin SUITES))),$(SUITES),multi)
sanitized = $(Q)tools/setup.sh check && \
	$(MAKE) --no-print-directory $(PARALLEL) BUILD=$(BUILD)/$1 SANITIZE=$2 CFLAGS='-O1 -g' KERNEL_CFLAGS= \
	SUITES='$(SANITIZED_SUITES)' run-tests
asan: ## multi-rank tests under AddressSanitizer and UBSan
	$(call sanitized,asan,address$(comma)undefined)
ubsan: ## multi-rank tests under UBSan
	$(call sanitized,ubsan,undefined)
tsan: ## multi-rank tests under ThreadSanitizer
	$(call sanitized,tsan,thread)
comma := ,

demo: ## compare the three transports on a small real model, and write a page
	$(Q)tools/setup.sh demo
	$(Q)$(MAKE) --no-print-directory $(PARALLEL) $(BUILD)/bin/epx-ab
	$(Q)mkdir -p $(BUILD)/demo
	$(BUILD)/bin/epx-ab --preset tiny --ranks 4 --virtual-ep 64 --arms pooled_wave,ragged,ring --pairs 3 \
		--json $(BUILD)/demo/ab.json --html $(BUILD)/demo/ab.html || [ $$? = 3 ]
	@echo 'The page: $(BUILD)/demo/ab.html'

bench: ## print speed and memory on this machine
	$(Q)tools/setup.sh demo
	$(Q)$(MAKE) --no-print-directory $(PARALLEL) all
	$(Q)BIN='$(BUILD)/bin' bench/run.sh

# The tests with several ranks once more, with a runner of our own in Criterion's place (tests/support/alone): for
# machines without Criterion, and for GPUs, which take longer to start than a test.
ALONE_SUITES := conformance fuzz $(if $(filter cuda,$(FEATURES_ON)),gpus)
# For GB200's processors: compiled for them by Debian's compiler, run by qemu. What is slow there is left to machines
# of their own kind; what could differ there, kernels, waits, words, is not.
ARM_SUITES := unit fuzz multi conformance
ALONE_RUNNERS := $(ALONE_SUITES:%=$(BUILD)/tests/alone-%)
objects_alone = $(1:%=$(BUILD)/obj/alone/%.o)
$(BUILD)/obj/alone/%.c.o: %.c $(FLAGS_KEY)
	$(call say,CC,$< (alone))
	$(Q)mkdir -p $(@D)
	$(Q)$(call compile,$<) -Itests/support/alone -MMD -MP -o $@
# alone: $1 suite. Files that look at Criterion's own record of their output stay out.
alone_srcs = $(filter $(call suite_srcs_alone,$1),$(shell grep -L 'criterion/redirect.h' tests/$1/*.c))
suite_srcs_alone = $(filter-out $(filter-out tests/%,$(EXCLUDE)),$(wildcard tests/$1/*.c))
define alone
$(BUILD)/tests/alone-$1: $(call objects_alone,$(call alone_srcs,$1) $(SUPPORT_SRCS) tests/support/alone/alone.c) \
		$(PARTS) $(TRAINLIB) $(TOOLLIB) $(STATIC) $(FLAGS_KEY)
	$$(call say,LD,$$@)
	$$(Q)mkdir -p $$(@D)
	$$(Q)$$(CC) $$(LINK_FLAGS) -o $$@ $$(filter %.o %.a,$$^) $$(TRAIN_FEATURE_LIBS) $$(LINK_LIBS)
endef
$(foreach s,$(sort $(ALONE_SUITES) $(ARM_SUITES)),$(eval $(call alone,$s)))

# Once more with a process for each rank, over the fabrics of processes.
# processes: $1 suite
define processes
$(BUILD)/tests/processes-$1: $(call objects_alone,$(filter-out %/malloc_count.c,$(wildcard tests/$1/*.c)) $(SUPPORT_SRCS) \
		tests/support/alone/alone.c $(wildcard tests/support/processes/*.c)) $(STATIC) $(FLAGS_KEY)
	$$(call say,LD,$$@)
	$$(Q)mkdir -p $$(@D)
	$$(Q)$$(CC) $$(LINK_FLAGS) -o $$@ $$(filter %.o %.a,$$^) $$(LINK_LIBS)
endef
$(foreach s,$(ALONE_SUITES),$(eval $(call processes,$s)))
-include $(wildcard $(BUILD)/obj/alone/tests/*/*.d $(BUILD)/obj/alone/tests/*/*/*.d)

GPU_TESTS := $(BUILD)/tests/gpu
$(GPU_TESTS): $(call objects,$(GPU_SRCS)) $(STATIC) $(FLAGS_KEY)
	$(if $(GPU_SRCS),,$(error this build has no device cuda: epx-info says why, make FEATURES="cuda" asks for it by name))
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LINK_FLAGS) -o $@ $(filter %.o %.a,$^) $(LINK_LIBS)

# GPU_RUN: what the tests of the kernels are run by.
GPU_RUN ?=
GPU_JOBS ?=
gpu-tests: $(GPU_TESTS) $(ALONE_RUNNERS)
.PHONY: gpu-tests run-gpu-tests
check-gpu: ## run the tests that need a GPU: its kernels against the host's, and the library on it
	$(Q)$(MAKE) --no-print-directory $(PARALLEL) run-gpu-tests

# By a make of its own: what was found here decides which suites there are.
run-gpu-tests: $(LIBS) $(PROGRAMS) $(GPU_TESTS) $(ALONE_RUNNERS)
	$(Q)TEST_BUILD='$(abspath $(BUILD))' TEST_ARGS='$(TEST_ARGS)' GPU_RUN='$(GPU_RUN)' GPU_JOBS='$(GPU_JOBS)' \
		mk/check-gpu.sh $(GPU_TESTS) $(ALONE_RUNNERS)

sanitize-gpu: ## compute-sanitizer over small shapes of the GPU's tests, in a minute
	$(Q)$(MAKE) --no-print-directory $(PARALLEL) $(GPU_TESTS) $(BUILD)/tests/alone-conformance
	$(Q)CUDA_HOME='$(CUDA_HOME)' mk/sanitize-gpu.sh $(GPU_TESTS) $(BUILD)/tests/alone-conformance \
		$(BUILD)/sanitize-gpu

# The Python package in a Python of its own: types, and the tests with JAX on four devices of this processor.
VENV := $(BUILD)/venv
# PyTorch comes with the system, since it is large.
TORCH_PYTHON ?= /usr/bin/python3
PYTHON_TESTS = EPX_LIBRARY='$(abspath $(BUILD))/lib/libepx.so' PYTHONPATH=bindings/python PYTHONDONTWRITEBYTECODE=1
PYTEST := -m pytest -q -p no:cacheprovider
TORCH_TESTS := $(addprefix bindings/python/tests/,test_torch.py test_buffer.py test_compile.py test_example.py)
# 1: a current PyTorch beside JAX, for torch.compile. It is 3 GB to fetch and 6 GB on the disk.
PIP_TORCH ?=
check-python: ## build and test the Python package (fetches JAX by pip; PIP_TORCH=1: PyTorch too)
	$(Q)tools/setup.sh python $(VENV)
	$(Q)$(if $(PIP_TORCH),tools/setup.sh torch $(VENV))
	$(Q)$(MAKE) --no-print-directory $(PARALLEL) PYTHON=$(abspath $(VENV))/bin/python all
	$(Q)cd bindings/python && EPX_LIBRARY='$(abspath $(BUILD))/lib/libepx.so' $(abspath $(VENV))/bin/mypy \
		--cache-dir $(abspath $(BUILD))/mypy $$($(abspath $(VENV))/bin/python -c 'import torch' 2> /dev/null \
		&& echo -p epx || echo -p epx.jax -m epx)
	$(Q)$(PYTHON_TESTS) $(VENV)/bin/python $(PYTEST) bindings/python/tests
	$(Q)if $(TORCH_PYTHON) -c 'import torch, pytest' 2> /dev/null; \
		then $(PYTHON_TESTS) $(TORCH_PYTHON) $(PYTEST) $(TORCH_TESTS); \
		else echo 'skipped: epx.torch: $(TORCH_PYTHON) has no PyTorch and pytest; TORCH_PYTHON names another'; fi
