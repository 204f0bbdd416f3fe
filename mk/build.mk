# How files are compiled and linked.

WARNINGS := -Wall -Wextra -Wshadow -Wvla -Wundef -Wpointer-arith -Wwrite-strings -Wstrict-prototypes \
	-Wmissing-prototypes -Wconversion -Wno-sign-conversion $(WERROR)
# The macros of Criterion define functions without prototypes and convert freely.
TEST_WARNINGS := -Wno-missing-prototypes -Wno-conversion -Wno-float-conversion

# Results are promised bit by bit: the compiler must not fuse a multiplication and an addition on its own.
EXACT := -ffp-contract=off

# A square root that may set errno cannot stand in a vector loop.
MATHS := -fno-math-errno

DEBUG ?= $(if $(SANITIZE),1)
# Kernels ask for clones of themselves, one per x86 generation, which the loader picks from. It does so before a
# sanitizer has started, which crashes; compilers for other machines do not know the names; and clang (seen with 14)
# gives the function a name that its callers do not look for. So no clones there.
HAS_CLONES := $(if $(findstring clang,$(shell $(CC) --version)),,$(filter x86_64%,$(shell $(CC) -dumpmachine)))
NO_CLONES := $(if $(SANITIZE)$(if $(HAS_CLONES),,1),-D'target_clones(...)=')
SANITIZE_CFLAGS := $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-sanitize-recover=all -fno-omit-frame-pointer)
BASE_CFLAGS = -std=c11 -D_GNU_SOURCE $(if $(DEBUG),-DEPX_DEBUG=1) $(WARNINGS) -fPIC -pthread -Iinclude -I.
LINK_FLAGS = $(CFLAGS) $(SANITIZE_CFLAGS) -pthread $(LDFLAGS)
LINK_LIBS = $(LIB_FEATURE_LIBS) -ldl -lm

# Flags that depend on the folder. Programs do not see the library's insides as "base/...": they use include/.
flags_of = $(BASE_CFLAGS) \
	$(if $(filter src/% kernels/% $(BUILD)/%,$1),-Isrc $(LIB_FEATURE_CFLAGS)) \
	$(if $(filter train/%,$1),$(TRAIN_FEATURE_CFLAGS)) \
	$(if $(filter tools/repro/% tools/doctor/%,$1),-Isrc) \
	$(if $(filter bindings/%,$1),$(JAX_FEATURE_CFLAGS)) \
	$(if $(filter tests/%,$1),-Isrc -Itests $(TEST_FEATURE_CFLAGS) $(TEST_WARNINGS)) \
	$(CPPFLAGS) $(CFLAGS) $(if $(filter kernels/host/% train/host/%,$1),$(KERNEL_CFLAGS) $(NO_CLONES)) \
	$(if $(filter train/host/%,$1),$(MATHS)) \
	$(SANITIZE_CFLAGS) $(EXACT)
compile = $(CC) $(strip $(call flags_of,$1)) -c $1

# Files that remember what was built with what. They are written, while make reads this, when that has changed.
remember = $(if $(and $(wildcard $1),$(call same,$(file <$1),$2)),,$(shell mkdir -p $(BUILD)/keys)$(file >$1,$2))
same = $(and $(findstring x$1,x$2),$(findstring x$2,x$1))
ALL_FLAGS := $(strip $(CC) $(foreach s,src/ kernels/host/ train/ train/host/ tests/ bench/,$(call flags_of,$s)) \
	$(LINK_FLAGS) $(LINK_LIBS) $(TRAIN_FEATURE_LIBS) $(TEST_FEATURE_LIBS))
FLAGS_KEY := $(BUILD)/keys/flags
$(call remember,$(CONFIG_KEY),$(strip $(CC) $(FEATURES) without $(WITHOUT) $(NCCL_HOMES) $(CUDA_HOME) $(NVCC) $(PYTHON)))
$(if $(CONFIGURED),$(call remember,$(FLAGS_KEY),$(ALL_FLAGS)))
# Another PYTHON has XLA's header elsewhere: that concerns the custom calls alone.
BINDINGS_KEY := $(BUILD)/keys/bindings
$(if $(CONFIGURED),$(call remember,$(BINDINGS_KEY),$(strip $(CC) $(call flags_of,bindings/))))
$(CONFIG_KEY) $(FLAGS_KEY) $(BINDINGS_KEY): ;

$(BUILD)/obj/%.c.o: %.c $(FLAGS_KEY)
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(call compile,$<) -MMD -MP -o $@

$(call objects,$(JAX_SRCS)): $(BINDINGS_KEY)

# The training loop once more in double precision, for tests of its gradients.
$(BUILD)/obj/double/%.c.o: %.c $(FLAGS_KEY)
	$(call say,CC,$< (double))
	$(Q)mkdir -p $(@D)
	$(Q)$(call compile,$<) -DEPX_TRAIN_DOUBLE=1 -MMD -MP -o $@

# The list of members is a prerequisite too, through a remembered file: a source that went away must leave.
# archive: $1 file, $2 objects
define archive
$(if $(CONFIGURED),$(call remember,$(BUILD)/keys/$(notdir $1),$(strip $2)))
$(BUILD)/keys/$(notdir $1): ;
$1: $2 $(BUILD)/keys/$(notdir $1)
	$$(call say,AR,$$@)
	$$(Q)mkdir -p $$(@D)
	$$(Q)rm -f $$@
	$$(Q)$$(AR) rcs $$@ $$(filter %.o,$$^)
endef

STATIC := $(BUILD)/lib/libepx.a
SHARED := $(BUILD)/lib/libepx.so.$(SOVERSION)
TRAINLIB := $(BUILD)/lib/libepxtrain.a
TOOLLIB := $(BUILD)/lib/libepxtool.a
TRAINLIB_DOUBLE := $(BUILD)/lib/libepxtrain_double.a
$(eval $(call archive,$(STATIC),$(call objects,$(LIB_SRCS) $(MADE_SRCS)) $(NCCL_OBJS)))
$(eval $(call archive,$(TRAINLIB),$(call objects,$(filter-out train/main.c,$(TRAIN_SRCS)))))
$(eval $(call archive,$(TRAINLIB_DOUBLE),$(call objects_double,$(filter-out train/main.c,$(TRAIN_SRCS)))))
$(eval $(call archive,$(TOOLLIB),$(call objects,$(COMMON_SRCS))))
LIBS := $(STATIC) $(if $(SANITIZE),,$(BUILD)/lib/libepx.so)

$(SHARED): $(call objects,$(LIB_SRCS) $(MADE_SRCS)) $(NCCL_OBJS) mk/libepx.map
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LINK_FLAGS) -shared -Wl,-soname,$(notdir $@) -Wl,--version-script=mk/libepx.map -Wl,-z,defs \
		-o $@ $(filter %.o,$^) $(LINK_LIBS)
$(BUILD)/lib/libepx.so: $(SHARED)
	$(Q)ln -sf $(notdir $<) $@

# Finds libepx.so beside itself; a Python program has it loaded before.
JAXLIB := $(if $(JAX_SRCS),$(if $(SANITIZE),,$(BUILD)/lib/libepx_jax.so))
$(BUILD)/lib/libepx_jax.so: $(call objects,$(JAX_SRCS)) $(BUILD)/lib/libepx.so mk/libepx_jax.map
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LINK_FLAGS) -shared -Wl,-soname,$(notdir $@) -Wl,--version-script=mk/libepx_jax.map -Wl,-z,defs \
		-Wl,-rpath,'$$ORIGIN' -o $@ $(filter %.o,$^) -L$(BUILD)/lib -lepx

# Programs hold the library itself, so that they run from any folder.
# program: $1 name, $2 folder, $3 archives beyond the common ones, $4 libraries
define program
PROGRAMS += $(BUILD)/bin/epx-$1
PARTS += $(BUILD)/parts/$1.a
$(call archive,$(BUILD)/parts/$1.a,$(call objects,$(filter-out $2/main.c,$(filter $2/%,$(TOOL_SRCS)))))
$(BUILD)/bin/epx-$1: $(call objects,$2/main.c) $(BUILD)/parts/$1.a $3 $(TOOLLIB) $(STATIC) $(FLAGS_KEY)
	$$(call say,LD,$$@)
	$$(Q)mkdir -p $$(@D)
	$$(Q)$$(CC) $$(LINK_FLAGS) -o $$@ $$(filter %.o %.a,$$^) $4 $$(LINK_LIBS)
endef

# These programs use the mathematics of the training loop; the others take shapes and recorded routing from it.
WITH_MATHS := train ab perf
WITH_TRAIN := $(WITH_MATHS) sim
program_of = $(call program,$1,$2,$(if $(filter $1,$(WITH_TRAIN)),$(TRAINLIB)),$(if $(filter $1,$(WITH_MATHS)),$(TRAIN_FEATURE_LIBS)))
$(foreach m,$(MAINS:/main.c=),$(eval $(call program_of,$(notdir $m),$m)))

-include $(patsubst %.o,%.d,$(call objects,$(C_SRCS) $(MADE_SRCS)) $(call objects_double,$(TRAIN_SRCS) $(TEST_SRCS)))
