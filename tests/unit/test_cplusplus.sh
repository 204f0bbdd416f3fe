#!/bin/bash
# The public headers in C++: no warning with all that are asked for here, also of each EPX_*_INIT where it is used, and
# its bytes are those of C.
# shellcheck source=tests/support/shell.sh
. tests/support/shell.sh
cxx=${TEST_CXX:-c++} cc=${TEST_CC:-cc}
if ! command -v "$cxx" > /dev/null; then
    echo "skipped: no C++ compiler ($cxx)"
    exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder" "$out" "$err"' EXIT

# try COMMAND...: like run, for programs of the system.
try() {
    last="$*"
    timeout 120 "$@" > "$out" 2> "$err"
    code=$?
}

# Prints the bytes of each value that are not zero; static values, whose padding is.
names=$(sed -n 's/^#define EPX_\([A-Z_]*\)_INIT\b.*/\L\1/p' include/epx/*.h | sort -u)
{
    # shellcheck disable=SC2046  # words
    printf '#include <%s>\n' $(cd include && echo epx/*.h) stdio.h
    for name in $names; do echo "static const epx_${name}_t $name = EPX_${name^^}_INIT;"; done
    echo 'static void show(const char *name, const void *value, size_t bytes)'
    echo '{'
    echo '    printf("%s: %zu bytes:", name, bytes);'
    echo '    for (size_t i = 0; i < bytes; i++)'
    echo '        if (((const unsigned char *)value)[i] != 0)'
    echo '            printf(" %zu=%02x", i, ((const unsigned char *)value)[i]);'
    echo '    printf("\n");'
    echo '}'
    echo 'int main(void)'
    echo '{'
    for name in $names; do echo "    show(\"$name\", &$name, sizeof($name));"; done
    echo '    return 0;'
    echo '}'
} > "$folder/show.c"
cp "$folder/show.c" "$folder/show.cc"
all=(-Wall -Wextra -Wpedantic -Werror -Iinclude)

try "$cc" -std=c11 "${all[@]}" -o "$folder/c" "$folder/show.c" && expect_code 0 && expect_quiet
try "$folder/c" && expect_code 0 && expect_out '^group_config: .* 0=' && expect_out '^bootstrap: .* 0='
cp "$out" "$folder/of_c"
for standard in c++11 c++14 c++17 c++20; do
    try "$cxx" -std=$standard "${all[@]}" -o "$folder/cxx" "$folder/show.cc" && expect_code 0 && expect_quiet
    try "$folder/cxx" && expect_code 0
    mv "$out" "$folder/of_cxx"
    try diff "$folder/of_c" "$folder/of_cxx" && expect_code 0
done
# A program may include them as what they are, headers of C.
{ echo 'extern "C" {'; grep '^#include <epx/' "$folder/show.cc"; echo '}'; } > "$folder/within.cc"
try "$cxx" -std=c++17 -fsyntax-only "${all[@]}" "$folder/within.cc" && expect_code 0 && expect_quiet
finish
