#!/bin/bash
# The suite with a process for each rank, over fabric ucx: over shared memory, then over TCP, where rows travel as
# pieces. What takes long is left out; `build/tests/processes-conformance --jobs 2` runs all of it.
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
runner="timeout -k 5 270 $TEST_BUILD/tests/processes-conformance --jobs 2 --timeout 100"
$runner --filter 'comm/*' --filter 'batches/*' --filter 'failures/*' --filter 'accounting/*' --filter 'memory/*' \
    --filter 'plugin/*' --filter 'environment/*' --filter 'values/*' || exit
UCX_TLS=tcp $runner --filter 'comm/*' --filter 'batches/*' --filter 'values/*'
