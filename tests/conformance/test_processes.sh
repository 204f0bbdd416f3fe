#!/bin/bash
# The suite with a process for each rank, over fabric ucx: one half over shared memory, the other over TCP, where rows
# travel as pieces; what waits, fails and recovers over both. `make check-processes` runs both halves both ways.
set -u
if [ -n "$SANITIZE" ]; then
    echo "the sanitizers look at ranks that are threads"
    exit 77
fi
if ! "$TEST_BUILD/bin/epx-info" -b | grep -Eq '^ucx +yes'; then
    echo "this build has no UCX"
    exit 77
fi
export UCX_HANDLE_ERRORS=none UCX_LOG_LEVEL=fatal
first=1/2 second=2/2
[ "${PROCESSES:-half}" != all ] || first=1/1 second=1/1
# run SECONDS ARGUMENT...
run() {
    local limit=$1
    shift
    timeout -k 5 "$limit" "$TEST_BUILD/tests/processes-conformance" --jobs 2 --timeout 150 "$@" || exit
}
echo "-- shared memory, part $first"
run 900 --part "$first"
echo "-- TCP, part $second"
export UCX_TLS=tcp
run 900 --part "$second"
[ "$second" = 1/1 ] || run 200 --part 1/2 --filter 'comm/*' --filter 'failures/*' --filter 'recovery/*' --filter 'scale/case13*'
