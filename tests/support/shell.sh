# For shell tests: source it, say expect..., end with finish. Counts what is wrong and says it.
# A test runs a program with `run`, which keeps its exit code in $code and its output in $out and $err.
# shellcheck shell=bash
set -u
unset "${!EPX_@}"
bin=${TEST_BUILD:?run by make check}/bin
out=$(mktemp) err=$(mktemp)
trap 'rm -f "$out" "$err"' EXIT
code=0 bad=0 checks=0

# run PROGRAM ARGUMENT...: variables before it count, as always: EPX_WAVES=2 run epx-info.
run() {
    local program=$1
    shift
    last="$program $*"
    timeout 120 "$bin/$program" "$@" > "$out" 2> "$err"
    code=$?
}

# wrong WHAT: counts a failure and shows what the program said.
wrong() {
    bad=$((bad + 1))
    echo "FAILED: $last: $1"
    sed 's/^/    out: /' "$out" | head -n 40
    sed 's/^/    err: /' "$err" | head -n 20
}

expect_code() {
    checks=$((checks + 1))
    [ "$code" = "$1" ] || wrong "exit code $code, not $1"
}

# expect_out PATTERN, expect_err PATTERN: extended regular expressions, on one line.
expect_out() {
    checks=$((checks + 1))
    grep -Eq -- "$1" "$out" || wrong "stdout lacks: $1"
}

expect_err() {
    checks=$((checks + 1))
    grep -Eq -- "$1" "$err" || wrong "stderr lacks: $1"
}

expect_no_out() {
    checks=$((checks + 1))
    ! grep -Eq -- "$1" "$out" || wrong "stdout has: $1"
}

expect_quiet() {
    checks=$((checks + 1))
    [ ! -s "$err" ] || wrong 'stderr is not empty'
}

# stdout is one JSON document. Needs python3; without it this is not looked at.
expect_json() {
    checks=$((checks + 1))
    command -v python3 > /dev/null || return 0
    python3 -c 'import json, sys; json.load(sys.stdin, parse_constant=lambda word: sys.exit(word + " is no JSON"))' \
        < "$out" 2>> "$err" || wrong 'stdout is not JSON'
}

# json EXPRESSION: a Python expression over the document d must be true.
json() {
    checks=$((checks + 1))
    command -v python3 > /dev/null || return 0
    python3 -c 'import json, sys; d = json.load(sys.stdin); sys.exit(not eval("(" + sys.argv[1] + ")"))' "$1" < "$out" 2>> "$err" ||
        wrong "not true of the JSON: $1"
}

finish() {
    echo "$checks checks, $bad failed"
    [ "$bad" = 0 ]
}
