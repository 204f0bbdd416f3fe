#!/bin/bash
# Faults that no scenario names, a few of each kind by a seed: no verdict may be a wrong name. All of them:
#   tests/multi/sweep.py build/bin/epx-repro --all --count 150
# shellcheck source=tests/support/shell.sh
. tests/support/shell.sh

# Budgets of tenths of a second are not for sanitizers, nor rows that race on purpose.
if [ -n "${SANITIZE:-}" ]; then
    echo 'the sanitizers see other tests'
    exit 77
fi

sweep() {
    timeout 300 python3 tests/multi/sweep.py "$bin/epx-repro" --jobs 2 "$@" > "$out" 2> "$err"
    code=$? last="tests/multi/sweep.py $*"
    expect_code 0
    expect_out ': [1-9][0-9]* right, [0-9]* unknown, 0 wrong$' # some are named, none wrongly
    cat "$out"
}
sweep --count 3 --seed 1
if "$bin/epx-info" -f | grep -Eq '^[* ]*ucx +[0-9]'; then
    sweep --count 1 --seed 1 --fabric ucx
fi
finish
