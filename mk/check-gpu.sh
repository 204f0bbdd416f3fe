#!/bin/sh
# Tests on the GPU: the kernels' own, then those of the library with device cuda. Goes on behind a failure; the last
# line is the sum.
#
#   TEST_BUILD=FOLDER TEST_ARGS= GPU_RUN= GPU_JOBS=8 mk/check-gpu.sh GPU_TESTS RUNNER...
set -u
passed=0 failed=0
log=$TEST_BUILD/check-gpu.log

# Adds the "N passed, N failed" that ended the log; a program that ended otherwise is a failure of its own.
add() { # NAME EXIT_CODE
    line=$(tail -n 1 "$log" | grep -E '^[0-9]+ passed, [0-9]+ failed')
    if [ -z "$line" ]; then
        echo "$1: ended with exit code $2 before its last line"
        failed=$((failed + 1))
        return
    fi
    n=${line%% passed*} m=${line#*passed, }
    m=${m%% failed*}
    passed=$((passed + n)) failed=$((failed + m))
    [ "$2" -eq 0 ] || [ "$m" -gt 0 ] || failed=$((failed + 1))
}

kernels=$1
shift
# The program's own output is wanted at once, and its end is needed afterwards.
run() { # NAME COMMAND...
    name=$1
    shift
    { "$@"; echo $? > "$log.code"; } 2>&1 | tee "$log"
    add "$name" "$(cat "$log.code")"
}
# shellcheck disable=SC2086  # words
run kernels $GPU_RUN "$kernels" $TEST_ARGS
for runner in "$@"; do
    echo "-- $runner"
    jobs=$GPU_JOBS
    case $runner in *-gpus) jobs=1 ;; esac # each of its tests wants all GPUs for itself
    TEST_DEVICE=cuda run "$runner" "$runner" --jobs "$jobs"
done
rm -f "$log" "$log.code"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
