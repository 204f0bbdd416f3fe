#!/bin/sh
# Which set-up kernels of fabric nccl this build gets (src/fabric/nccl/setup.h): one for the headers that
# mk/detect.sh found, one for each folder of NCCL_HOMES whose include/ has those of another minor version.
#
#   CC=cc CUDA_HOME=/path NCCL_HOMES="/path /path" mk/nccl.sh BUILD_FOLDER
#
# Goes behind mk/detect.sh: adds to BUILD_FOLDER/config.mk, and writes BUILD_FOLDER/nccl_setups.c for the library.
set -eu
build=$1
CC=${CC:-cc}
out=$build/nccl_setups.c.new
names='' seen=' '

# minor FLAGS...: "2.28" of the nccl.h that these flags find; it includes one of CUDA's.
minor() {
    printf '#include <nccl.h>\nEPX_VERSION NCCL_MAJOR NCCL_MINOR\n' | $CC -E "$@" -isystem "${CUDA_HOME:-/usr/local/cuda}/include" - 2> /dev/null |
        grep -v '^#' | tr -s '\n ' ' ' | sed -n 's/.*EPX_VERSION \([0-9]*\) \([0-9]*\).*/\1.\2/p'
}

if grep -q '^FEATURES_ON += nccl$' "$build/config.mk"; then
    # shellcheck disable=SC2046  # flags are words
    own=$(minor $(sed -n 's/^LIB_FEATURE_CFLAGS += //p' "$build/config.mk"))
    names=epx_nccl_setup_own seen=" $own "
    for home in ${NCCL_HOMES:-}; do
        version=$(minor -isystem "$home/include")
        if [ -z "$version" ] || [ ! -e "$home/include/nccl_device.h" ]; then
            echo "NCCL_HOMES: $home/include has no nccl.h and nccl_device.h of NCCL 2.28 or newer" >&2
            exit 1
        fi
        case $seen in *" $version "*) continue ;; esac
        seen="$seen$version "
        names="$names epx_nccl_setup_$(echo "$version" | tr . _)"
        printf 'NCCL_MINORS += %s\nNCCL_HOME_%s := %s\n' "$version" "$version" "$home" >> "$build/config.mk"
    done
fi

{
    printf '/* The set-up kernels of this build; written by mk/nccl.sh. */\n#include "fabric/nccl/setup.h"\n\n'
    count=0
    for name in $names; do
        echo "extern const nccl_setup_t $name;"
        count=$((count + 1))
    done
    printf '\nconst nccl_setup_t *const epx_nccl_setups[] = {'
    for name in $names; do
        printf '&%s, ' "$name"
    done
    printf '0};\nconst int epx_nccl_setup_count = %d;\n' $count
} > "$out"
# An unchanged list keeps its date, so that the library is not linked again for nothing.
if cmp -s "$out" "$build/nccl_setups.c"; then rm "$out"; else mv "$out" "$build/nccl_setups.c"; fi
