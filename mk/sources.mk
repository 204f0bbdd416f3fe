# Which files make what. Nothing here names a single file, except main.c, the entry of each program.

# What is found depends on mk/features.txt. Goals that only start other makes skip the search.
WRAPPERS := help clean reconfigure demo check bench model asan ubsan tsan lint format check-gpu check-aarch64 check-rdma check-processes sanitize-gpu check-python uninstall
ifneq ($(filter-out $(WRAPPERS),$(or $(MAKECMDGOALS),all)),)
include $(BUILD)/config.mk
endif

CONFIG_KEY := $(BUILD)/keys/config
# On Debian the package database changes whenever a library may have come or gone.
FEATURE_SOURCES := $(wildcard src/device/cuda kernels/cuda train/cuda train/host src/launch src/topology \
	src/health src/fabric/nccl src/fabric/ucx tests)
$(BUILD)/config.mk: mk/detect.sh mk/nccl.sh mk/features.txt $(wildcard /var/lib/dpkg/status) $(FEATURE_SOURCES) \
		$(CONFIG_KEY)
	$(call say,FIND,optional libraries)
	$(Q)CC='$(CC)' FEATURES='$(FEATURES)' WITHOUT='$(WITHOUT)' CUDA_HOME='$(CUDA_HOME)' NVCC='$(NVCC)' \
		PYTHON='$(PYTHON)' NCCL_HOMES='$(NCCL_HOMES)' mk/detect.sh $(BUILD)
	$(Q)CC='$(CC)' CUDA_HOME='$(CUDA_HOME)' NCCL_HOMES='$(NCCL_HOMES)' mk/nccl.sh $(BUILD)
$(BUILD)/features.c $(BUILD)/nccl_setups.c: $(BUILD)/config.mk ;

# pick: drops what belongs to missing parts, and keeps the stubs that stand in for them.
pick = $(sort $(filter $(KEEP),$1) $(filter-out $(EXCLUDE),$1))
objects = $(1:%=$(BUILD)/obj/%.o)
objects_double = $(1:%=$(BUILD)/obj/double/%.o)

CUDA_SRCS := $(wildcard kernels/cuda/*.cu src/device/cuda/*.cu src/fabric/nccl/*.cu train/cuda/*.cu)
LIB_SRCS := $(call pick,$(wildcard src/*/*.c src/fabric/*/*.c src/device/*/*.c kernels/*/*.c) \
	$(filter-out train/%,$(CUDA_SRCS)))
# Written by mk/detect.sh and mk/nccl.sh; and fabric nccl's set-up kernel once more for each folder of NCCL_HOMES.
MADE_SRCS := $(BUILD)/features.c $(BUILD)/nccl_setups.c
NCCL_OBJS := $(NCCL_MINORS:%=$(BUILD)/obj/nccl/setup-%.cu.o)
# Custom calls for XLA: a library of their own, since they need XLA's header and only JAX's programs need them.
JAX_SRCS := $(call pick,$(wildcard bindings/jax/*.c))
PLUGIN_SRCS := $(wildcard tests/plugins/*.c)

# A program is a folder with a main.c. All else in the folder goes into an archive, which tests link too.
TRAIN_SRCS := $(call pick,$(wildcard train/*.c train/host/*.c train/cuda/*.c) $(filter train/%,$(CUDA_SRCS)))
COMMON_SRCS := $(wildcard bench/common/*.c tools/common/*.c)
TOOL_MAINS := $(wildcard bench/*/main.c tools/*/main.c)
TOOL_SRCS := $(call pick,$(wildcard $(TOOL_MAINS:main.c=*.c)))
MAINS := $(wildcard train/main.c) $(TOOL_MAINS)

SUITES ?= $(filter-out support plugins gpu gpus,$(sort $(patsubst tests/%/,%,$(dir $(wildcard tests/*/*.c)))))
SUPPORT_SRCS := $(wildcard tests/support/*.c)
suite_srcs = $(call pick,$(wildcard tests/$1/*.c))
TEST_SRCS := $(SUPPORT_SRCS) $(foreach s,$(SUITES),$(call suite_srcs,$s))
SHELL_TESTS := $(foreach s,$(SUITES),$(wildcard tests/$s/test_*.sh))

# Tests of the GPU run where there may be no Criterion: a program of their own, with what they need of the support.
GPU_SRCS := $(if $(filter cuda,$(FEATURES_ON)),$(wildcard tests/gpu/*.c) tests/support/number.c)

C_SRCS := $(filter %.c,$(sort $(LIB_SRCS) $(JAX_SRCS) $(TRAIN_SRCS) $(COMMON_SRCS) $(TOOL_SRCS) $(GPU_SRCS) \
	$(if $(filter criterion,$(FEATURES_ON)),$(TEST_SRCS))))
