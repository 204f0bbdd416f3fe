#!/bin/sh
# The GPU's tests on small shapes under compute-sanitizer: memcheck for all kernels and for whole steps of the
# library, racecheck for the kernels, those of words included. Tests run beside each other and over all GPUs, since most
# of the time is the tool's own, on the processor. Ends within a minute on sixteen cores; says which test found what, and
# in the last line how many, and in which time.
#
#   SANITIZE_SECONDS=55 GPU_JOBS=12 mk/sanitize-gpu.sh GPU_TESTS CONFORMANCE_RUNNER LOG_FOLDER
set -u
begin=$(date +%s)
tests=$1 runner=$2 logs=$3
tool=${COMPUTE_SANITIZER:-compute-sanitizer}
for place in "$tool" "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer"; do
    command -v "$place" > /dev/null 2>&1 && tool=$place && break
done
if ! command -v "$tool" > /dev/null 2>&1; then
    echo "compute-sanitizer was not found: it comes with the CUDA toolkit; COMPUTE_SANITIZER names it"
    exit 1
fi
mkdir -p "$logs"
rm -f "$logs"/*.log "$logs"/*.bad
gpus=${CUDA_VISIBLE_DEVICES:-$(nvidia-smi --query-gpu=index --format=csv,noheader 2> /dev/null | paste -sd, -)}
gpus=${gpus:-0}
count=$(echo "$gpus" | tr ',' '\n' | grep -c .)

# What is looked at: GPU, NAME and the command, one a line. Shapes of the "many" tests are large by intention, and the tool
# loads kernels in its own time.
{
    for test in $("$tests" --list | grep -v -e many -e first_launches); do
        echo "memcheck-$test memcheck $tests --small $test"
        echo "racecheck-$test racecheck $tests --small --most 2 $test"
    done
    for arm in pooled_wave_1 pooled_wave_extra ragged_1 ragged_rank_fair ragged_indexed ring_fair; do
        for test in exact/two_runs_are_bit_equal cases/case04_all_tokens_to_one plans/case16_two_lanes_in_turn; do
            echo "memcheck-$arm-${test##*/} memcheck env TEST_ARM=$arm $runner --filter $test"
        done
    done
    for test in sums_are_made_while_others_travel a_row_for_many_places_is_read_once; do
        echo "memcheck-$test memcheck $runner --filter large/$test"
    done
} | awk -v gpus="$gpus" '{ n = split(gpus, gpu, ","); print gpu[NR % n + 1], $0 }' > "$logs/list"

export TEST_DEVICE=cuda tool logs
# A worker: one line of the list. Exit code 9 is the tool's word for what it found.
# shellcheck disable=SC2016  # for the inner shell
xargs -P "${GPU_JOBS:-12}" -I LINE sh -c '
    set -f
    set -- LINE
    name=$2 kind=$3
    export CUDA_VISIBLE_DEVICES="$1"
    shift 3
    timeout "${SANITIZE_SECONDS:-55}" "$tool" --tool "$kind" --error-exitcode 9 --target-processes all "$@" \
        > "$logs/$name.log" 2>&1
    code=$?
    [ $code -eq 0 ] || echo "$name: exit code $code, see $logs/$name.log" > "$logs/$name.bad"
' < "$logs/list"

all=$(wc -l < "$logs/list")
bad=$(find "$logs" -name '*.bad' | wc -l)
[ "$bad" -eq 0 ] || cat "$logs"/*.bad
echo "$((all - bad)) passed, $bad failed: memcheck and racecheck, $count GPU(s), $(($(date +%s) - begin)) s"
[ "$bad" -eq 0 ]
