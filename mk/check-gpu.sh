#!/bin/bash
# Tests on the GPUs, any number of them. Beside each other: the kernels' own tests, the suites of the library with
# ranks that share a GPU (every job sees one GPU), the Python package. Then, alone: many steps, and ranks with a GPU
# each, as threads, as processes, under launchers. Every part is bounded and goes on behind failures of the others.
#
#   TEST_BUILD=FOLDER GPU_JOBS= GPU_SECONDS=240 GPU_THIN=5 GPU_RUN= TEST_ARGS= mk/check-gpu.sh GPU_TESTS RUNNER...
#
# GPU_JOBS: processes of a suite at a time (8 for each GPU). GPU_SECONDS: the limit of one part. GPU_THIN: over NCCL, one
# in so many of each test's arms, since a communicator takes most of a second to make. TEST_ARGS go to the kernels' tests.
# GPU_PARTS="kernels conformance ...": only these. Logs are in TEST_BUILD/check-gpu. The last line is the sum.
set -u -o pipefail
kernels=$1
shift
logs=$TEST_BUILD/check-gpu
rm -rf "$logs" && mkdir -p "$logs" || exit 1
begin=$SECONDS limit=${GPU_SECONDS:-240} passed=0 failed=0 skipped=0 left_out=()
cd "$(dirname "$0")/.." || exit 1
# NVLink multicast is of no use here, and a program that ends badly with it can take the GPUs down.
export NCCL_NVLS_ENABLE=0

gpus=${CUDA_VISIBLE_DEVICES:-$(nvidia-smi --query-gpu=index --format=csv,noheader 2> /dev/null | paste -sd, -)}
gpus=${gpus:-0}
count=$(tr ',' '\n' <<< "$gpus" | grep -c .)
jobs=${GPU_JOBS:-$((8 * count))}

# part NAME COMMAND...: its log, its exit code and how long it took stay in files.
part() {
    local name=$1 from=$SECONDS
    shift
    [[ " ${GPU_PARTS:-$name} " == *" $name "* ]] || return 0
    timeout -k 10 "$limit" "$@" > "$logs/$name.log" 2>&1 < /dev/null
    echo $? $((SECONDS - from)) > "$logs/$name.end"
}

# count NAME: adds the "N passed, N failed" that ended the log; a program that ended otherwise is one failure.
count() {
    local code seconds line
    [ -e "$logs/$1.end" ] || return 0
    read -r code seconds < "$logs/$1.end"
    line=$(tail -n 1 "$logs/$1.log" | grep -Eo '^[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?')
    if [ -z "$line" ]; then
        line="1 failed: ended with exit code $code before its last line"
        [ "$code" -ne 124 ] && [ "$code" -ne 137 ] || line="1 failed: did not end in $limit s"
        tail -n 5 "$logs/$1.log" | sed 's/^/    /'
        failed=$((failed + 1))
    else
        read -r p f s <<< "$(tr -c '0-9\n' ' ' <<< "$line")"
        [ "$code" -eq 0 ] || [ "$f" -gt 0 ] || { f=1 && line="$line: and yet exit code $code"; }
        passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + ${s:-0}))
    fi
    grep -E '^\[(FAIL|CRASH|TIME OUT)\]|^CRASH: |^FAILED |^left out' "$logs/$1.log" | sed 's/^/    /'
    printf '%-14s %4d s  %s\n' "$1" "$seconds" "$line"
}

# Programs without a sum of their own: the exit code is the result.
alone() {
    "$@" && echo '1 passed, 0 failed' && return
    echo '0 passed, 1 failed' && return 1
}
export -f alone

echo "GPUs $gpus; logs in $logs"
# shellcheck disable=SC2086  # words
part kernels ${GPU_RUN:-} "$kernels" ${TEST_ARGS:-} &
names=() apart='' conformance='' fuzz=''
for runner in "$@"; do
    name=${runner##*/alone-}
    if [ "$name" = gpus ]; then
        apart=$runner
        continue
    fi
    [ "$name" = conformance ] && conformance=$runner
    names+=("$name")
    if [ "$name" = fuzz ]; then
        fuzz=$runner
        continue
    fi
    TEST_DEVICE=cuda part "$name" "$runner" --jobs "$jobs" --gpus "$gpus" --slowest 5 &
done
part python mk/check-gpu-python.sh &
wait
# Ten thousand steps have a time-out of their own, and on a GPU that others use too they do not keep it.
[ -z "$fuzz" ] || TEST_DEVICE=cuda part fuzz "$fuzz" --jobs "$jobs" --gpus "$gpus" --slowest 5
# What looks at times of kernels beside each other: programs that take turns on a GPU would be in them.
part undisturbed "$kernels" --undisturbed
for name in kernels "${names[@]}" python undisturbed; do count "$name"; done

# ---- a GPU for each rank -----------------------------------------------------------------------------------------
if [ -n "$apart" ]; then
    part gpus "$apart" --slowest 3
    count gpus
    if [ "$count" -gt 1 ] && [ -n "$conformance" ]; then
        # Where more ranks are asked for than there are GPUs a test is skipped; whole suites want three.
        three=()
        [ "$count" -lt 3 ] || three=(--filter 'exact/*' --filter 'plans/*')
        TEST_DEVICE=cuda TEST_FABRIC=nccl part nccl "$conformance" --jobs $((4 * count)) --slowest 3 --thin "${GPU_THIN:-5}" \
            --filter 'accounting/*' --filter 'cases/*' --filter 'large/*' "${three[@]}"
        count nccl
    fi
fi
# ---- known hangs -------------------------------------------------------------------------------------------------
if [ -x "$TEST_BUILD/bin/epx-repro" ]; then
    part hangs mk/check-gpu-hangs.sh "$count"
    count hangs
else
    left_out+=('known hangs: this build has no epx-repro; make all builds it')
fi

limit=$((limit < 90 ? limit : 90))
job=("$apart" --filter nccl/one_rank_of_a_job)
perf=("$TEST_BUILD/bin/epx-perf" --device cuda --fabric nccl --transport all --op all --tokens 512 --width 1024 -i 3)
# What kernels do from some size on alone (rows used while others travel): the suites have it in small shapes.
large=("$TEST_BUILD/bin/epx-perf" --device cuda --ranks 2 --transport ragged --capacity-factor dropless
    --waves 1 --wire rank --tokens 2048 --width 7168 --top-k 8 --experts 64 -i 5 --op 'dispatch,combine')
if [ "$count" -lt 2 ] || [ -z "$apart" ]; then
    large+=(--fabric local)
    left_out+=('a GPU for each of several ranks, large sums made while others travel, and launchers: one GPU')
else
    large+=(--fabric nccl --graph)
fi
# shellcheck disable=SC2016  # for the inner shell
part large bash -c 'alone "$@"' '' "${large[@]}"
count large
# Launchers start a rank for each GPU; a job of one process is none.
if [ "$count" -gt 1 ] && [ -n "$apart" ]; then
    if command -v mpirun > /dev/null; then
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
        # shellcheck disable=SC2016  # for the inner shell
        part mpirun bash -c 'alone mpirun --oversubscribe -n "$0" "$@"' "$count" "${job[@]}"
        # shellcheck disable=SC2016  # for the inner shell
        part mpirun-perf bash -c 'alone mpirun --oversubscribe -n "$0" "$@"' "$count" "${perf[@]}"
        count mpirun
        count mpirun-perf
    else
        left_out+=('mpirun: not here')
    fi
    if "${PYTHON:-python3}" -c 'import torch.distributed.run' 2> /dev/null; then
        # shellcheck disable=SC2016  # for the inner shell
        part torchrun bash -c 'alone "$@"' '' "${PYTHON:-python3}" -m torch.distributed.run --no-python \
            --nproc-per-node "$count" --master-port $((20000 + $$ % 12000)) "${job[@]}"
        count torchrun
    else
        left_out+=("torchrun: ${PYTHON:-python3} has no PyTorch")
    fi
fi
for what in "${left_out[@]}"; do echo "left out: $what"; done
echo "$passed passed, $failed failed, $skipped skipped: $count GPU$([ "$count" -eq 1 ] || echo s), $((SECONDS - begin)) s"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
