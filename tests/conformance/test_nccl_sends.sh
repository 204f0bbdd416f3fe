#!/bin/bash
# The library over fabric nccl where loads and stores do not reach the peers (EPX_NCCL_PATH=sendrecv), over the library
# that stands in for NCCL: its sends and receives must pair up, byte by byte, whatever becomes of a route or a rank.
set -u
if [ -n "$SANITIZE" ]; then # its runtime handles the faults, and guarded memory is not what it looks for
    echo "the sanitizers look at the host device"
    exit 77
fi
exec env TEST_DEVICE=guarded TEST_FABRIC=nccl TEST_NCCL_PATH=sendrecv TEST_NCCL="$TEST_BUILD/tests/plugins/nccl.so" \
    "$TEST_BUILD/tests/alone-conformance" --jobs 4 --filter 'cases/case1*' --filter 'failed_route/*' \
    --filter 'accounting/*' \
    --filter 'failures/a_rank_that*' --filter 'failures/aborted*' --filter 'recovery/again*' --filter 'failures/recover_without_a_lost_rank_as_before'
