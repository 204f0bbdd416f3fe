#!/bin/bash
# All checks of the code that run nothing. Each finding is a line "file:line: what"; exits 1 if there is any.
#
#   CC=cc BUILD=build tools/lint/run.sh
set -u
cd "$(dirname "$0")/../.." || exit 1
CC=${CC:-cc}
BUILD=${BUILD:-build}
status=0

mapfile -t code < <(find include src kernels train bench tools tests mk \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) \
    2> /dev/null | sort)
mapfile -t text < <(find . \( -name .git -o -path './build*' -o -path ./data \) -prune -o -type f \
    \( -name '*.sh' -o -name '*.py' -o -name '*.md' -o -name '*.mk' -o -name Makefile -o -path './.ci/*' \) -print |
    sed 's|^\./||' | sort)

# Formatting: clang-format names the place; the first word of each complaint is enough.
format() {
    clang-format --dry-run -Werror "${code[@]}" 2>&1 | sed -n 's/: error: code should be clang-formatted.*/: format differs (make format)/p' |
        sed 's/:\([0-9]*\):[0-9]*:/:\1:/' | sort -u -t: -k1,2
}

# compile LANGUAGE HEADER FLAGS...: prints what the compiler has against a file that holds nothing but this header, and a
# variable of each EPX_*_INIT of a public one: what is wrong with a macro shows where it is used.
compile() {
    local language=$1 header=$2
    shift 2
    {
        printf '#include "%s"\n' "$header"
        [[ $header != include/epx/* ]] || sed -n 's/^#define EPX_\([A-Z_]*\)_INIT\b.*/\L\1/p' "$header" | sort -u |
            while read -r name; do printf 'epx_%s_t %s = EPX_%s_INIT;\n' "$name" "$name" "${name^^}"; done
    } |
        $CC -fsyntax-only -x "$language" -D_GNU_SOURCE -Wall -Wextra -Werror -I. -Iinclude -Isrc "$@" - 2>&1 |
        grep -E '(error|fatal error|warning):' | head -n 1
}

# Each header stands on its own. Headers of parts that this build lacks have nothing to stand on.
headers() {
    local absent header complaint standard
    absent=$(sed -n 's/^EXCLUDE += //p' "$BUILD/config.mk" 2> /dev/null | tr ' ' '\n' | sed -n 's|/%\.c$||p')
    for header in "${code[@]}"; do
        case $header in *.h) ;; *) continue ;; esac
        case $header in tests/* | */cuda/*) continue ;; esac
        grep -qxF "$(dirname "$header")" <<< "$absent" && continue
        complaint=$(compile c "$header" -std=c11)
        [ -z "$complaint" ] || echo "$header:1: does not compile on its own: $complaint"
        case $header in include/epx/*) ;; *) continue ;; esac
        command -v c++ > /dev/null || continue
        for standard in c++17 c++20; do
            complaint=$(compile c++ "$header" -std=$standard -Wpedantic)
            [ -z "$complaint" ] || echo "$header:1: does not compile as $standard: $complaint"
        done
    done
}

# report NAME COMMAND...: a check fails if it prints anything.
report() {
    local name=$1 findings
    shift
    findings=$("$@")
    if [ -n "$findings" ]; then
        echo "$findings"
        status=1
    fi
    echo "lint: $name: $(grep -c . <<< "$findings") findings" >&2
}

report format format
report headers headers
report sources python3 tools/lint/sources.py "${code[@]}" "${text[@]}"
mapfile -t pages < <(printf '%s\n' "${text[@]}" | grep '\.md$')
report pages python3 tools/lint/pages.py "${pages[@]}"
exit $status
