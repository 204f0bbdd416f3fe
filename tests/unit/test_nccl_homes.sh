#!/bin/bash
# A build with the headers of several NCCL versions has a set-up kernel for each minor one, once; a folder without
# headers is refused by its name. Headers are made up: only their version is read here.
set -u
work=$(mktemp -d "${TMPDIR:-/tmp}/nccl-homes-XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
failed=0
expect() { # WHAT PATTERN FILE
    grep -qE -- "$2" "$3" || { echo "$1: no '$2' in:"; cat "$3"; failed=1; }
}
home() { # VERSION NUMBERS...
    mkdir -p "$work/$1/include"
    printf '#define NCCL_MAJOR %s\n#define NCCL_MINOR %s\n#define NCCL_PATCH %s\n' "$2" "$3" "$4" \
        > "$work/$1/include/nccl.h"
    : > "$work/$1/include/nccl_device.h"
}
home a 2 28 3
home b 2 30 7
home c 2 28 9
home d 2 29 7
build=$work/build
mkdir -p "$build"
printf 'FEATURES_ON += nccl\nLIB_FEATURE_CFLAGS += -isystem %s/include\n' "$work/a" > "$build/config.mk"
export CC=${TEST_CC:-cc}
NCCL_HOMES="$work/a $work/b $work/c $work/d" mk/nccl.sh "$build" || failed=1
expect homes '^const int epx_nccl_setup_count = 3;$' "$build/nccl_setups.c"
expect homes '\{&epx_nccl_setup_own, &epx_nccl_setup_2_30, &epx_nccl_setup_2_29, 0\};' "$build/nccl_setups.c"
expect homes "^NCCL_HOME_2.30 := $work/b\$" "$build/config.mk"
[ "$(grep -c '^NCCL_MINORS' "$build/config.mk")" = 2 ] || { cat "$build/config.mk" && failed=1; }
if NCCL_HOMES="$work/none" mk/nccl.sh "$build" 2> "$work/said"; then
    echo "a folder without headers was taken" && failed=1
fi
expect 'no headers' "$work/none/include has no nccl.h" "$work/said"
# Without the feature there is none, whatever is given.
: > "$build/config.mk"
NCCL_HOMES="$work/b" mk/nccl.sh "$build" || failed=1
expect 'no feature' '^const int epx_nccl_setup_count = 0;$' "$build/nccl_setups.c"
[ ! -s "$build/config.mk" ] || { cat "$build/config.mk" && failed=1; }
[ $failed = 0 ] && echo "1 passed, 0 failed" || echo "0 passed, 1 failed"
exit $failed
