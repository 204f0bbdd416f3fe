#!/bin/sh
# Finds out which optional parts (mk/features.txt) this build gets, by compiling and linking a small program for
# each, because a header that is there may still not fit the compiler or the library beside it.
#
#   CC=cc FEATURES=auto|none|"name name" WITHOUT="name name" CUDA_HOME=/path NVCC=/path NCCL_HOMES="/path /path" \
#       PYTHON=python3 mk/detect.sh BUILD_FOLDER
#
# Writes BUILD_FOLDER/config.mk for make and BUILD_FOLDER/features.c for the library.
set -eu
build=$1
CC=${CC:-cc}
FEATURES=${FEATURES:-auto}
WITHOUT=${WITHOUT:-}
work=$build/detect
mkdir -p "$work"
: > "$work/config.mk"
printf '#include "base/features.h"\n\nconst epx_feature_t epx_features[] = {\n' > "$work/features.c"

wanted() {
    case " $WITHOUT " in *" $1 "*) return 1 ;; esac
    case $FEATURES in
    auto) return 0 ;;
    *) case " $FEATURES " in *" $1 "*) return 0 ;; esac ;;
    esac
    return 1
}

has_sources() {
    for pattern in $1; do
        for file in $pattern; do
            [ -e "$file" ] && return 0
        done
    done
    return 1
}

# Kernels need their compiler too.
has_compiler() {
    case $1 in *.cu*) [ -n "${NVCC:-}" ] ;; esac
}

# Kernels take minutes to compile: without being asked by name they are built where a driver could run them.
has_driver() {
    { [ "$1" != cuda ] && [ "$1" != nccl ]; } || [ "$FEATURES" != auto ] || [ -e /dev/nvidiactl ] ||
        { ldconfig -p 2> /dev/null | grep -q 'libcuda\.so\.1'; }
}

# links HEADER FUNCTION FLAGS...: does a program that uses them build? FUNCTION -: the header alone.
links() {
    header=$1 function=$2
    shift 2
    printf '#include <%s>\nint main(void) { return (void *)&%s == (void *)0; }\n' "$header" "$function" \
        > "$work/try.c"
    if [ "$function" = - ]; then # the header may be for another language
        printf '#include <%s>\n' "$header" | $CC -E "$@" - > "$work/try.log" 2>&1
        return
    fi
    $CC -o "$work/try" "$work/try.c" "$@" > "$work/try.log" 2>&1
}

# Sets cflags, libs and reason; the package's own word first, then the plain flags of the table.
find_flags() {
    if [ -n "$pkg" ] && command -v pkg-config > /dev/null 2>&1 && pkg-config --exists "$pkg"; then
        cflags=$(pkg-config --cflags "$pkg") libs=$(pkg-config --libs "$pkg")
        reason="found by pkg-config, version $(pkg-config --modversion "$pkg")"
        # shellcheck disable=SC2086  # flags are words
        links "$header" "$function" $cflags $libs && return 0
    fi
    cflags='' libs=$plain reason="found in the compiler's default folders"
    # shellcheck disable=SC2086
    links "$header" "$function" $libs && return 0
    if [ -n "${CUDA_HOME:-}" ] && [ -d "$CUDA_HOME/include" ]; then
        cflags="-isystem $CUDA_HOME/include" libs="-L$CUDA_HOME/lib64 $plain" reason="found in $CUDA_HOME"
        # shellcheck disable=SC2086
        links "$header" "$function" $cflags $libs && return 0
    fi
    find_in_homes && return 0
    find_in_jaxlib && return 0
    reason="a test program with <$header>${plain:+ and $plain} does not build"
    return 1
}

# NCCL's headers may be in folders of the user's own, as a wheel's; the first will do (mk/nccl.sh sees to all).
find_in_homes() {
    case $header in nccl*) ;; *) return 1 ;; esac
    for home in ${NCCL_HOMES:-}; do
        cflags="-isystem $home/include" libs=$plain reason="found in $home"
        # shellcheck disable=SC2086
        links "$header" "$function" $cflags && return 0
    done
    return 1
}

# XLA's header comes with jaxlib, a Python package: the one that $PYTHON would import.
find_in_jaxlib() {
    case $header in xla/*) ;; *) return 1 ;; esac
    folder=$("${PYTHON:-python3}" -c 'import importlib.util as u
print(u.find_spec("jaxlib").submodule_search_locations[0] + "/include")' 2> /dev/null) || return 1
    cflags="-isystem $folder" libs='' reason="found in $folder"
    # shellcheck disable=SC2086
    links "$header" "$function" $cflags
}

trim() {
    printf '%s' "$1" | sed 's/^ *//; s/ *$//'
}

while IFS='|' read -r name header function pkg plain user sources; do
    name=$(trim "$name")
    case $name in '' | '#'*) continue ;; esac
    header=$(trim "$header") function=$(trim "$function") pkg=$(trim "$pkg") plain=$(trim "$plain")
    user=$(trim "$user") sources=$(trim "$sources")
    compiled=0
    if ! wanted "$name"; then
        reason='switched off by FEATURES'
    elif ! has_sources "$sources"; then
        reason='not part of this version'
    elif ! has_compiler "$sources"; then
        reason='nvcc was not found'
    elif ! has_driver "$name"; then
        reason='no NVIDIA driver here; make FEATURES=cuda builds it all the same'
    elif find_flags; then
        compiled=1
    fi
    {
        if [ $compiled = 1 ]; then
            echo "FEATURES_ON += $name"
            echo "EXCLUDE += %_no$name.c"
            echo "$user""_FEATURE_CFLAGS += $cflags"
            echo "$user""_FEATURE_LIBS += $libs"
        else
            echo "EXCLUDE += $(printf '%s' "$sources" | sed 's/tests[^ ]*//g; s/\*\/\*/%/g; s/\*/%/g')"
            echo "KEEP += %_no$name.c"
        fi
    } >> "$work/config.mk"
    printf '    {"%s", %d, "%s"},\n' "$name" $compiled "$reason" >> "$work/features.c"
done < mk/features.txt

printf '    {0, 0, 0},\n};\n' >> "$work/features.c"
echo 'CONFIGURED := yes' >> "$work/config.mk"

# An unchanged table keeps its date, so that the library is not linked again for nothing.
cmp -s "$work/features.c" "$build/features.c" || cp "$work/features.c" "$build/features.c"
mv "$work/config.mk" "$build/config.mk"
rm -rf "$work"
