#!/bin/bash
# The pages tell the truth: the program in README.md builds against an installed epx and runs on every transport, fragments of
# docs/using.md compile, the plug-in is built as its page says, options of commands exist, and settings are those of the
# library. What else pages name, make lint looks for.
# shellcheck source=tests/support/shell.sh
. tests/support/shell.sh
if [ -n "${SANITIZE:-}" ]; then
    echo "skipped: an installed library has no sanitizer"
    exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder" "$out" "$err"' EXIT
pages=(README.md CONTRIBUTING.md docs/*.md)
cc=${TEST_CC:-cc}

# try COMMAND...: like run, for programs of the system.
try() {
    last="$*"
    timeout 120 "$@" > "$out" 2> "$err"
    code=$?
}

# blocks LANGUAGE PAGE: the fenced blocks of that language, one after the other.
blocks() {
    awk -v fence="^\`\`\`$1\$" '$0 ~ fence { inside = 1; next } /^```/ { inside = 0 } inside' "$2"
}

# missing WHAT PAGE NAME: something that a page names is not there.
missing() {
    last=$2
    wrong "$1 that does not exist: $3"
}

# ---- the program --------------------------------------------------------------------------------------------------------
# The folder is named as make check names it: files of dependencies hold names.
try make --no-print-directory install CC="$cc" BUILD="${TEST_BUILD#"$PWD"/}" PREFIX="$folder/epx" DESTDIR= && expect_code 0
export PKG_CONFIG_PATH=$folder/epx/lib/pkgconfig LD_LIBRARY_PATH=$folder/epx/lib
blocks c README.md > "$folder/four.c"
# shellcheck disable=SC2046  # words
try "$cc" -std=c11 -Wall -Wextra -Werror -pthread -o "$folder/four" "$folder/four.c" $(pkg-config --cflags --libs epx)
expect_code 0
for transport in pooled_wave ragged ring; do
    EPX_TRANSPORT=$transport try "$folder/four"
    expect_code 0
    expect_quiet
    for rank in 0 1 2 3; do expect_out "^rank $rank of 4, $transport: 3.5$"; done
done
# The README's sh block builds it in the same way.
blocks sh README.md | grep -q 'pkg-config --cflags --libs epx'; code=$?; expect_code 0

# ---- fragments ----------------------------------------------------------------------------------------------------------
{
    cat <<'END'
#include <epx/comm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define TRY(call) if ((call) != EPX_OK) return
void run_experts(epx_batch_t *batch, float *y);
void run_experts_on_gpu(epx_batch_t *batch, float *y, epx_stream_t stream);
void run_experts_backward(epx_batch_t *dy, float *dx_rows);
void skip_this_step(void);
extern epx_comm_h comm;
extern epx_group_config_t config;
extern epx_group_h group;
extern epx_group_info_t info;
extern epx_plan_h plan;
extern epx_routing_t routing;
extern epx_plan_stats_t stats;
extern epx_batch_t batch;
extern float *x, *y, *y_of[16], *out, *dout, *dx, *dx_rows, *dweight, *weights;
extern int32_t *ids;
extern int64_t tokens;
extern int wave;
extern epx_stream_t stream;
extern void *kept;
END
    awk '/^```c$/ { inside = 1; printf "void fragment_%d(void)\n{\n#line %d \"docs/using.md\"\n", NR, NR + 1; next }
         /^```/ && inside { inside = 0; print "}" }
         inside' docs/using.md
} > "$folder/using.c"
try "$cc" -std=c11 -D_GNU_SOURCE -Wall -Wno-shadow -Wno-missing-prototypes -Wno-maybe-uninitialized -Wno-uninitialized -Werror \
    -I"$folder/epx/include" -c -o "$folder/using.o" "$folder/using.c"
expect_code 0

# ---- the plug-in, as its page builds it ------------------------------------------------------------------------------------
cp examples/plugin/worst_case.c "$folder/"
build=$(blocks sh docs/writing-a-transport.md | grep '^cc ' | head -n 1)
[ -n "$build" ]; code=$?; expect_code 0
(cd "$folder" && PREFIX=$folder/epx && export PREFIX && eval "${build/#cc/$cc}") > "$out" 2> "$err"; code=$?
last=$build expect_code 0
EPX_TRANSPORT=$folder/libworst_case.so EPX_CAPACITY_FACTOR=dropless try "$folder/four"
expect_code 0
expect_out '^rank 2 of 4, worst_case: 3.5$'

# ---- commands and their options --------------------------------------------------------------------------------------------
# Lines of code blocks (fenced or indented), with continued lines joined, and what stands between backquotes.
code_lines() {
    grep -v '^    ' "$1" | grep -oE '`[^`]+`' | tr -d '`'
    awk '/^```/ { inside = !inside; next } inside || /^    / { line = line $0
         if (sub(/\\$/, " ", line)) next; print line; line = "" }' "$1"
}
for page in "${pages[@]}"; do
    while read -r line; do
        for program in epx-train epx-perf epx-info epx-ab epx-sim epx-repro epx-doctor epx-health epx-kernels; do
            [[ $line =~ (^|[ /\(\'\"=])$program(' '|$) ]] && [ -x "$bin/$program" ] || continue
            # What a script is given to run: the options are the script's.
            [[ ${line%%"$program"*} == *.py\ * ]] && continue
            "$bin/$program" --help > "$folder/help" 2>&1
            # What stands between this program's name and the end of its command.
            part=${line#*"$program"}
            part=${part%%[|;>#]*}
            for option in $(grep -oE -- ' --[a-z][a-z0-9-]*' <<< "$part"); do
                checks=$((checks + 1))
                grep -Eq -- "(^|[ ,])$option([ ,=]|\$)" "$folder/help" || missing "$program has an option" "$page" "$option"
            done
        done
    done < <(code_lines "$page")
done

# ---- variables: the page and the library list the same ----------------------------------------------------------------------
awk '/^## / { inside = $0 == "## Settings" } inside && /^\| `EPX_/ { print substr($2, 2, length($2) - 2) }' docs/environment.md |
    sort > "$folder/page"
run epx-info -c
awk '/^EPX_/ { print $1 }' "$out" | sort > "$folder/library"
try diff "$folder/page" "$folder/library" && expect_code 0
for page in "${pages[@]}"; do
    for name in $(grep -ohE 'EPX_[A-Z_]*[A-Z](=|`)' "$page" | sed 's/[=`]$//' | sort -u); do
        # Names of the API that look alike are constants of the headers.
        grep -rqw "$name" include/epx && continue
        checks=$((checks + 1))
        plain=$(sed -E 's/^EPX_(POOLED_WAVE|RAGGED|RING|WORST_CASE|NAME)_/EPX_/' <<< "$name")
        grep -qx "$plain" "$folder/library" || [[ $name =~ ^EPX_(RANK|WORLD_SIZE|ROOT|LIBRARY)$ ]] || missing 'a variable' "$page" "$name"
    done
done
finish
