#!/bin/bash
# The suite with a process for each rank, over fabric ucx: one half of every test's parameters over shared memory, the
# other over TCP, where rows travel as pieces, and of both every second one; what waits, fails and recovers over both.
# So every test runs here, and every arm in many of them, but not every arm in every test: that is `make
# check-processes`, both halves both ways and thinned nowhere.
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
first=1/2 second=2/2 thin=2
[ "${PROCESSES:-half}" != all ] || first=1/1 second=1/1 thin=1
# run SECONDS ARGUMENT...
run() {
    local limit=$1
    shift
    timeout -k 5 "$limit" "$TEST_BUILD/tests/processes-conformance" --jobs 2 --timeout 150 --thin $thin "$@" || exit
    echo "   $SECONDS s"
}
# With all of UCX's transports, as they are without UCX_TLS, a process takes half as long again to begin and to end:
# that is for some.
echo "-- shared memory, part $first"
UCX_TLS=sysv,posix,self run 900 --part "$first"
echo "-- shared memory beside all other transports"
run 200 --part "$first" --filter 'by_hand/*' --filter 'comm/*' --filter 'plugin/*'
echo "-- TCP, part $second"
export UCX_TLS=tcp
run 900 --part "$second"
[ "$second" = 1/1 ] || run 200 --part 1/2 --filter 'comm/*' --filter 'failures/*' --filter 'recovery/*' --filter 'scale/case13*'
