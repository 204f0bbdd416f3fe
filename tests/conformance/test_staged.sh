#!/bin/bash
# The library over a fabric that cannot load and store peers' memory (tests/support/pieces.h), whose waits hold what
# ranks send against what their peers expect: all of the suite with pieces that land when they are sent, then again,
# what moves rows, with pieces that are fetched as late as may be, on ranks that have no one-sided words.
set -u
if [ -n "$SANITIZE" ]; then
    echo "the sanitizers look at one fabric; TEST_FABRIC=put or take with a runner picks another"
    exit 77
fi
alone="$TEST_BUILD/tests/alone-conformance --jobs 4"
TEST_FABRIC=put $alone || exit
TEST_FABRIC=paired $alone --filter 'exact/*' --filter 'batches/*' --filter 'failed_route/*' --filter 'routing/*' \
    --filter 'values/*' --filter 'accounting/*' --filter 'plans/*' --filter 'memory/*'
