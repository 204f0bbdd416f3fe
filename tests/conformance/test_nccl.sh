#!/bin/bash
# The library over fabric nccl where there is no GPU: words and waits run in the streams of the guarded device, and a
# library of our own stands in for NCCL. A part of the tests: what is shared with test_guarded.sh is tested there.
set -u
if [ -n "$SANITIZE" ]; then # its runtime handles the faults, and guarded memory is not what it looks for
    echo "the sanitizers look at the host device"
    exit 77
fi
exec env TEST_DEVICE=guarded TEST_FABRIC=nccl TEST_NCCL="$TEST_BUILD/tests/plugins/nccl.so" \
    "$TEST_BUILD/tests/alone-conformance" --jobs 4 --filter 'exact/*' --filter 'cases/*' --filter 'plans/*' \
    --filter 'failed_route/*' --filter 'batches/*' --filter 'routing/*' \
    --filter 'failures/a_rank_that*' --filter 'failures/aborted*' --filter 'recovery/again*' --filter 'failures/recover_without*'
