#!/bin/bash
# The whole programme of a machine with GPUs, in one call of less than eight minutes: build, tests, what the machine
# itself does (floors), the library, the usual PyTorch code, a table. Any number of GPUs: with one, ranks are threads
# that share it and what lies between GPUs is left out, which is said.
#
#   bench/gpu.sh [--no-build] [--no-check] [--logs FOLDER]
#
# BUILD=folder of the build (build/gpu), PYTHON=interpreter with PyTorch (python3).
set -u -o pipefail
cd "$(dirname "$0")/.." || exit 2
build=${BUILD:-build/gpu} python=${PYTHON:-python3} logs="" do_build=1 do_check=1
while [ $# -gt 0 ]; do
    case $1 in
    --no-build) do_build=0 ;;
    --no-check) do_check=0 ;;
    --logs) logs=${2:?--logs needs a folder} && shift ;;
    *) echo "gpu.sh: $1 is not known: see the head of bench/gpu.sh" >&2 && exit 2 ;;
    esac
    shift
done
logs=${logs:-$build/bench} status=0 left_out=()
mkdir -p "$logs"
# NVLink multicast is of no use here, and a program that ends badly with it can take the GPUs down.
export NCCL_NVLS_ENABLE=0

begin=$SECONDS
stage() { printf '\n== %s (%d s)\n' "$1" $((SECONDS - begin)); }
leave_out() {
    left_out+=("$1")
    echo "left out: $1"
}

gpus=$(nvidia-smi --list-gpus 2> /dev/null | grep -c '^GPU')
if [ "$gpus" -eq 0 ]; then
    echo 'gpu.sh: nvidia-smi shows no GPU: nothing can be measured here' >&2
    exit 3
fi
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
ranks=$gpus fabric=nccl
if [ "$gpus" -eq 1 ]; then
    ranks=2 fabric=local
fi

if [ $do_build = 1 ]; then
    stage 'build'
    make -s -j "$(nproc)" BUILD="$build" all || exit 1
fi

if [ $do_check = 1 ]; then
    stage 'tests'
    timeout 170 make -s BUILD="$build" check-gpu > "$logs/check.log" 2>&1 || status=1
    tail -n 1 "$logs/check.log"
    [ "$gpus" -gt 1 ] || leave_out 'tests over NCCL with several ranks: one GPU'
else
    leave_out 'tests (--no-check)'
fi

stage 'floors'
nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
"$nvcc" -std=c++17 -O3 -arch=native -o "$build/floors" bench/gpu/floors.cu &&
    timeout 60 "$build/floors" | tee "$logs/floors.log" || status=1
if [ "$gpus" -eq 1 ]; then
    leave_out 'ncclAlltoAll: one GPU'
elif "$nvcc" -std=c++17 -O3 -arch=native -o "$build/alltoall" bench/gpu/alltoall.cu -lnccl 2> "$logs/alltoall.log"; then
    timeout 60 "$build/alltoall" | tee "$logs/alltoall.log" || status=1
else
    leave_out "ncclAlltoAll: bench/gpu/alltoall.cu does not build here, see $logs/alltoall.log"
fi

stage "epx: $ranks ranks, fabric $fabric"
# perf NAME ARGUMENTS...: JSON in the logs, the table on the screen comes from it.
perf() {
    local name=$1
    shift
    timeout 60 "$build/bin/epx-perf" --json --device cuda --fabric "$fabric" --ranks "$ranks" --width 7168 --top-k 8 \
        --timeout-ms 10000 "$@" > "$logs/epx-$name.json" 2> "$logs/epx-$name.log" && return
    echo "epx-perf $*: $(tail -n 1 "$logs/epx-$name.log")"
    status=1
}
ragged=(--transport ragged --wire rank --waves 1 --capacity-factor dropless)
perf indexed-128 "${ragged[@]}" --batch indexed --experts 256 --tokens 128 -i 30
perf indexed-4096 "${ragged[@]}" --batch indexed --experts 256 --tokens 4096 -i 15
perf expanded-4096 "${ragged[@]}" --batch expanded --experts 256 --tokens 4096 -i 15
perf indexed-8192 "${ragged[@]}" --batch indexed --experts 64 --tokens 8192 -i 15
perf expanded-8192 "${ragged[@]}" --batch expanded --experts 64 --tokens 8192 -i 15
perf indexed-8192-24 "${ragged[@]}" --batch indexed --experts 64 --tokens 8192 -i 15 --sm-budget 24 --no-check
perf indexed-8192-one "${ragged[@]}" --batch indexed --experts 64 --tokens 8192 -i 10 --skew one-expert --no-check
perf pooled-4096 --transport pooled_wave --experts 256 --tokens 4096 -i 10
perf ring-4096 --transport ring --experts 256 --tokens 4096 -i 10

stage 'PyTorch'
if ! "$python" -c 'import torch' 2> /dev/null; then
    leave_out "the exchange in PyTorch: $python has no torch"
elif [ "$gpus" -eq 1 ]; then
    leave_out 'the exchange in PyTorch: one GPU'
else
    timeout 90 "$python" bench/torch_exchange.py --ranks "$gpus" > "$logs/torch.json" 2> "$logs/torch.log" || status=1
    cat "$logs/torch.json"
fi

stage 'table'
"$python" bench/gpu/table.py "$logs" || status=1
if [ ${#left_out[@]} -gt 0 ]; then
    printf '\nleft out:\n'
    printf '  %s\n' "${left_out[@]}"
fi
printf '\n%d s in all\n' $((SECONDS - begin))
exit $status
