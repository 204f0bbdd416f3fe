# Looking at the code without running it.

ALL_C := $(wildcard $(foreach d,include/epx src/* src/fabric/* src/device/* kernels/* train train/* bench/* tools/* \
	tests/* mk,$d/*.c $d/*.h $d/*.cu $d/*.cuh))

.PHONY: model lint format cuda-compile compile_commands.json
lint: $(BUILD)/config.mk ## formatting, layers, headers, sizes, words
	$(Q)tools/setup.sh lint
	$(Q)CC='$(CC)' BUILD='$(BUILD)' tools/lint/run.sh

model: ## check the model of how slots are shared with spin, and that its mutants are refuted
	$(Q)tools/setup.sh model
	$(Q)CC='$(CC)' tests/model/check.sh $(BUILD)/model

format: ## let clang-format write the house style
	$(Q)tools/setup.sh lint
	$(Q)clang-format -i $(ALL_C)

# Compiled for both generations, run on neither here; nvcc alone decides whether the code is well formed.
CUDA_ARCHS := $(foreach a,90 100,-gencode arch=compute_$a$(comma)code=sm_$a)
# C programs link these without the C++ library.
CUDA_HOST_FLAGS := -fPIC,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics
CUDA_OBJS := $(CUDA_SRCS:%=$(BUILD)/obj/%.o)
cuda-compile: $(if $(NVCC),$(CUDA_OBJS)) ## compile the CUDA kernels for sm_90 and sm_100
	$(if $(CUDA_OBJS),,@echo 'cuda-compile: this version has no .cu file, so there is nothing to compile')
	$(if $(NVCC),,@echo 'cuda-compile: nvcc was not found, so nothing was compiled; NVCC=/path/to/nvcc names it')
# nvcc: $1 what is shown, $2 further flags
define nvcc
	$(if $(NVCC),,$(error nvcc was not found: install the CUDA toolkit or set NVCC))
	$(call say,NVCC,$1)
	$(Q)mkdir -p $(@D)
	$(Q)$(NVCC) -std=c++17 -O3 -lineinfo --fmad=false $(CUDA_ARCHS) -Werror all-warnings -Iinclude -Isrc -I. $2 \
		$(patsubst -I%,-isystem %,$(CPPFLAGS)) $(LIB_FEATURE_CFLAGS) -Xcompiler $(CUDA_HOST_FLAGS) -MMD -c -o $@ $<
endef
$(BUILD)/obj/%.cu.o: %.cu $(FLAGS_KEY)
	$(call nvcc,$<)
$(NCCL_OBJS): $(BUILD)/obj/nccl/setup-%.cu.o: src/fabric/nccl/setup.cu $(FLAGS_KEY)
	$(call nvcc,$< (NCCL $*),-isystem $(NCCL_HOME_$*)/include -DEPX_NCCL_SETUP=epx_nccl_setup_$(subst .,_,$*))
-include $(CUDA_OBJS:.o=.d) $(NCCL_OBJS:.o=.d)

# The same flags as the rules use, so that editors and clang-tidy see the build's own view.
quote = $(subst ",\",$(subst \,\\,$1))
entry = {"directory": "$(CURDIR)", "file": "$1", "command": "$(call quote,$(call compile,$1))"}
empty :=
define newline


endef
compile_commands.json: ## for editors and clang-tidy
	$(call say,GEN,$@)
	@: $(file >$@,[$(subst }$(empty) {,}$(comma)$(newline){,$(foreach s,$(C_SRCS),$(call entry,$s)))])
