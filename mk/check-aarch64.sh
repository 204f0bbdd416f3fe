#!/bin/bash
# Runs the tests that were compiled for 64-bit ARM, by an emulator, each suite within its time.
#
#   mk/check-aarch64.sh 'qemu-aarch64 -L /usr/aarch64-linux-gnu'
#
# An emulated processor is about twenty times slower. Of multi and conformance a part runs: what waits, posts and
# exchanges between ranks, and each kernel; tests of the training loop, of large shapes and of other programs are for
# machines of their own kind.
set -u
read -ra emulator <<< "$1"
passed=0 failed=0 skipped=0

# suite NAME SECONDS [PATTERN...]
suite() {
    local name=$1 limit=$2 filters=() pattern line log
    shift 2
    for pattern in "$@"; do filters+=(--filter "$pattern"); done
    log=$TEST_BUILD/tests/aarch64-$name.log
    timeout -k 5 "$limit" "${emulator[@]}" "$TEST_BUILD/tests/alone-$name" --jobs 2 --timeout 60 "${filters[@]}" > "$log" 2>&1
    line=$(tail -n 1 "$log")
    if [[ $line =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped$ ]] && [ "${BASH_REMATCH[1]}" -gt 0 ]; then
        passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2])) skipped=$((skipped + BASH_REMATCH[3]))
        [ "${BASH_REMATCH[2]}" = 0 ] || grep '^\[' "$log"
    else
        failed=$((failed + 1))
        echo "$name did not come to its end within $limit s: $log" && tail -n 20 "$log"
    fi
    echo "-- $name: $line ($SECONDS s)"
}

export TEST_OPERATIONS=100000 # of a million in record_soak
suite unit 200
suite fuzz 150
suite multi 150 'pooled*/*' 'ragged*/*' 'ring*/*'
suite conformance 150 'comm/*' 'by_hand/*' 'failed_route/*'
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
