#!/bin/bash
# The whole programme of a machine with GPUs, in one call of less than eight minutes: build, tests, what the machine
# itself does (floors), the library, the usual PyTorch and JAX code, and one table with every figure that must be
# reached. Any number of GPUs: with one, ranks are threads that share it and what lies between GPUs is left out, which
# the table says.
#
#   bench/gpu.sh [--no-build] [--no-check] [--only PARTS] [--seconds N] [--logs FOLDER]
#
# PARTS between commas: check, floors, kernels, alone (ranks that share a GPU), link (a GPU each), torch, jax,
# frameworks (what a call through them adds).
# BUILD=folder of the build (build/gpu), PYTHON=interpreter with PyTorch and JAX (python3), NVCC=compiler.
#
# Every item is bounded and may fail: the table says so, and the others go on. What would begin after --seconds (470) is
# left out; a run that is ended early writes its table all the same. Results: FOLDER/table.md and table.json, by
# default in BUILD/bench.
set -u -o pipefail
cd "$(dirname "$0")/.." || exit 2
build=${BUILD:-build/gpu} python=${PYTHON:-python3} logs="" do_build=1 do_check=1 only="" most=470
while [ $# -gt 0 ]; do
    case $1 in
    --no-build) do_build=0 ;;
    --no-check) do_check=0 ;;
    --seconds) most=${2:?--seconds needs a number} && shift ;;
    --only) only=${2:?--only needs parts} && shift ;;
    --logs) logs=${2:?--logs needs a folder} && shift ;;
    *) echo "gpu.sh: $1 is not known: see the head of bench/gpu.sh" >&2 && exit 2 ;;
    esac
    shift
done
logs=${logs:-$build/bench} status=0 running=
rm -rf "$logs" && mkdir -p "$logs" || exit 2
# NVLink multicast is of no use here, and a program that ends badly with it can take the GPUs down.
export NCCL_NVLS_ENABLE=0 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

begin=$SECONDS
stage() { printf '\n== %s (%d s)\n' "$1" $((SECONDS - begin)); }
# leave_out NAME WHY: NAME is that of the log which the table looks for.
leave_out() {
    echo "$2" > "$logs/$1.why"
    echo "left out: $1: $2"
}
wanted() { [ -z "$only" ] || [[ ",$only," == *",$1,"* ]]; }

visible=${CUDA_VISIBLE_DEVICES:-$(nvidia-smi --query-gpu=index --format=csv,noheader 2> /dev/null | paste -sd, -)}
gpus=$(tr ',' '\n' <<< "$visible" | grep -c .)
if [ "$gpus" -eq 0 ]; then
    echo 'gpu.sh: nvidia-smi shows no GPU: nothing can be measured here' >&2
    exit 3
fi
nvidia-smi --query-gpu=index,name,driver_version,clocks.sm --format=csv,noheader | tee "$logs/machine.log"
first=${visible%%,*} last=${visible##*,}

table() {
    trap - TERM INT HUP
    [ -z "$running" ] || kill "$running"
    stage table
    "$python" -c '' 2> /dev/null || python=python3
    timeout 30 "$python" bench/gpu/table.py "$logs" || status=1
    printf '\n%s and %s; %d s in all\n' "$logs/table.md" table.json $((SECONDS - begin))
}
trap 'echo "ended early"; table; exit 1' TERM INT HUP

# item NAME LIMIT COMMAND...: stdout to NAME.json, stderr to NAME.log. What fails is said here and in the table.
item() {
    local name=$1 limit=$2 from=$SECONDS code
    shift 2
    if [ $((SECONDS - begin)) -ge "$most" ]; then
        leave_out "$name" "no time was left of $most s"
        return 0
    fi
    timeout -k 5 "$limit" "$@" > "$logs/$name.json" 2> "$logs/$name.log" < /dev/null &
    running=$!
    wait $running
    code=$?
    running=
    if [ $code -ne 0 ]; then
        [ $code -ne 124 ] && [ $code -ne 137 ] || echo "did not end in $limit s" > "$logs/$name.why"
        echo "$name failed: $(tail -n 1 "$logs/$name.why" 2> /dev/null || tail -n 1 "$logs/$name.log")"
        mv "$logs/$name.json" "$logs/$name.out"
        return 1
    fi
    echo "$name: $((SECONDS - from)) s"
}

if [ $do_build = 1 ]; then
    stage build
    # For these GPUs alone: the others' code would only take time.
    level=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2> /dev/null | head -n 1 | tr -d .)
    archs=(${level:+"CUDA_ARCHS=-gencode arch=compute_$level,code=sm_$level"})
    make -s -j "$(nproc)" BUILD="$build" "${archs[@]}" all > "$logs/build.log" 2>&1 || {
        tail -n 20 "$logs/build.log"
        exit 1
    }
    if [ $do_check = 1 ] && wanted check; then
        make -s -j "$(nproc)" BUILD="$build" "${archs[@]}" gpu-tests >> "$logs/build.log" 2>&1 || tail -n 5 "$logs/build.log"
    fi
fi
perf=("$build/bin/epx-perf" --json --device cuda --width 7168 --top-k 8 --timeout-ms 10000)
rows=(--transport ragged --capacity-factor dropless --waves 1)
whole=(--op 'route,dispatch,combine,whole_dispatch')

stage floors
if ! wanted floors; then
    leave_out floors 'not among the parts of --only'
else
    nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
    if timeout 60 "$nvcc" -std=c++17 -O3 -arch=native -o "$build/floors" bench/gpu/floors.cu 2> "$logs/floors.why"; then
        rm -f "$logs/floors.why"
        timeout -k 5 40 "$build/floors" 2> "$logs/floors.why" | tee "$logs/floors.log" || status=1
    fi
    if timeout 60 "$nvcc" -std=c++17 -O3 -arch=native -o "$build/product" bench/gpu/product.cu -lcublas 2> "$logs/product.why"; then
        timeout -k 5 30 "$build/product" 24 2> "$logs/product.why" | tee "$logs/product.log" || status=1
    else
        leave_out product "bench/gpu/product.cu does not build here: $(tail -n 1 "$logs/product.why")"
    fi
    if [ "$gpus" -eq 1 ]; then
        leave_out alltoall 'one GPU'
    elif timeout 60 "$nvcc" -std=c++17 -O3 -arch=native -o "$build/alltoall" bench/gpu/alltoall.cu -lnccl 2> "$logs/alltoall.why"; then
        timeout -k 5 40 "$build/alltoall" 2> "$logs/alltoall.why" | tee "$logs/alltoall.log" || status=1
    else
        leave_out alltoall "bench/gpu/alltoall.cu does not build here: $(tail -n 1 "$logs/alltoall.why")"
    fi
fi

# ---- a GPU for each rank ------------------------------------------------------------------------------------------
link() { # NAME LIMIT ARGUMENT...
    local name=$1 limit=$2
    shift 2
    item "$name" "$limit" "${perf[@]}" --fabric nccl --ranks "$gpus" "$@" || status=1
}
if ! wanted link || [ "$gpus" -lt 2 ]; then
    why='one GPU'
    wanted link || why='not among the parts of --only'
    for name in small-indexed small-expanded small-backward indexed-4096 expanded-4096 indexed-8192 expanded-8192 \
        graph-indexed-4096 graph-indexed-8192 graph-expanded-8192 budget sweep one hot pooled pooled-expanded pooled-small ring backward cold mpirun; do
        leave_out "n-$name" "$why"
    done > /dev/null
    echo "left out: what lies between GPUs: $why"
else
    stage "epx: $gpus ranks, a GPU each"
    rank=("${rows[@]}" --wire rank)
    small=(--graph --latency --tokens 128 --experts 256 -i 100 --warmup 10)
    link n-small-indexed 30 "${rank[@]}" --batch indexed "${small[@]}" "${whole[@]}"
    link n-small-expanded 30 "${rank[@]}" --batch expanded "${small[@]}" "${whole[@]}"
    link n-small-backward 30 "${rank[@]}" --batch expanded "${small[@]}" --op all
    link n-indexed-4096 40 "${rank[@]}" --batch indexed --experts 256 --tokens 4096 -i 15 "${whole[@]}"
    link n-expanded-4096 40 "${rank[@]}" --batch expanded --experts 256 --tokens 4096 -i 15 "${whole[@]}" --no-check
    link n-indexed-8192 40 "${rank[@]}" --batch indexed --experts 64 --tokens 8192 -i 15 "${whole[@]}" --no-check
    link n-expanded-8192 40 "${rank[@]}" --batch expanded --experts 64 --tokens 8192 -i 15 "${whole[@]}" --no-check
    # The same from graphs: a program records its calls or makes them, and the table has both.
    link n-graph-indexed-4096 30 "${rank[@]}" --graph --batch indexed --experts 256 --tokens 4096 -i 15 "${whole[@]}"
    link n-graph-indexed-8192 30 "${rank[@]}" --graph --batch indexed --experts 64 --tokens 8192 -i 15 "${whole[@]}" --no-check
    link n-graph-expanded-8192 30 "${rank[@]}" --graph --batch expanded --experts 64 --tokens 8192 -i 15 "${whole[@]}" --no-check
    link n-budget 50 "${rank[@]}" --batch indexed --experts 64 --tokens 8192 -i 12 --sm-budget 24 --beside --no-check \
        --op 'route,dispatch,combine,combine_start'
    link n-sweep 60 "${rank[@]}" --batch indexed --experts 64 --tokens 8192 -i 7 --sm-budget 4,8,16,24,32,64,0 --no-check
    link n-one 40 "${rank[@]}" --batch indexed --experts 64 --tokens 8192 -i 10 --skew one-expert --no-check
    link n-hot 40 "${rank[@]}" --batch indexed --experts 64 --tokens 8192 -i 10 --skew hot:fraction=0.5,experts=4 --no-check
    link n-pooled 40 --transport pooled_wave --batch indexed --experts 256 --tokens 4096 -i 10
    link n-pooled-expanded 40 --transport pooled_wave --experts 256 --tokens 4096 -i 10 --no-check
    link n-pooled-small 30 --transport pooled_wave --batch indexed "${small[@]}"
    link n-ring 40 --transport ring --experts 256 --tokens 4096 -i 10 --no-check
    link n-backward 40 "${rank[@]}" --batch expanded --experts 256 --tokens 4096 -i 10 --op all
    link n-cold 40 "${rank[@]}" --batch indexed --experts 256 --tokens 4096 -i 10 --cold --no-check
    if command -v mpirun > /dev/null; then
        item n-mpirun 40 mpirun --oversubscribe -n "$gpus" "${perf[@]}" --fabric nccl "${rank[@]}" --batch indexed \
            --experts 256 --tokens 4096 -i 10 "${whole[@]}" || status=1
    else
        leave_out n-mpirun 'mpirun is not here'
    fi
fi

# ---- frameworks ---------------------------------------------------------------------------------------------------
if ! wanted torch; then
    leave_out torch 'not among the parts of --only'
elif [ "$gpus" -eq 1 ]; then
    leave_out torch 'one GPU: its exchange needs one for each rank'
elif ! "$python" -c 'import torch' 2> /dev/null; then
    leave_out torch "$python has no PyTorch"
else
    stage PyTorch
    item torch 90 "$python" bench/torch_exchange.py --ranks "$gpus" || status=1
fi
if ! wanted jax; then
    leave_out jax 'not among the parts of --only'
elif [ ! -e bench/jax_layer.py ]; then
    leave_out jax 'bench/jax_layer.py is not here'
elif ! "$python" -c 'import jax' 2> /dev/null; then
    leave_out jax "$python has no JAX"
else
    stage JAX
    EPX_LIBRARY="$build/lib/libepx.so" PYTHONPATH=bindings/python item jax 90 "$python" bench/jax_layer.py --json || status=1
fi

if ! wanted frameworks; then
    leave_out frameworks 'not among the parts of --only'
else
    stage 'what a call through PyTorch and JAX adds'
    CUDA_VISIBLE_DEVICES=$first EPX_LIBRARY="$build/lib/libepx.so" item frameworks 60 "$python" bench/framework_overhead.py ||
        status=1
fi

# ---- ranks that share a GPU: on the last one, while the kernels alone are timed on the first --------------------------
alone() { # NAME LIMIT RANKS ARGUMENT...
    local name=$1 limit=$2 ranks=$3
    shift 3
    CUDA_VISIBLE_DEVICES=$last item "$name" "$limit" "${perf[@]}" --fabric local --ranks "$ranks" "$@" || status=1
}
kernels() {
    CUDA_VISIBLE_DEVICES=$first item kernels 60 "$build/bin/epx-kernels" --json
    CUDA_VISIBLE_DEVICES=$first item s-small 30 "${perf[@]}" --fabric nccl --ranks 1 "${rows[@]}" --wire rank --batch indexed \
        --graph --latency --tokens 128 --experts 256 -i 100 --warmup 10 "${whole[@]}"
}
stage 'kernels, and ranks that share a GPU'
if ! wanted kernels; then
    leave_out kernels 'not among the parts of --only'
elif [ "$gpus" -gt 1 ]; then
    kernels &
else
    kernels
fi
if wanted alone; then
    alone l-ep2 40 2 "${rows[@]}" --wire assignment --experts 384 --tokens 8192 -i 8 --no-check
    alone l-ep8 40 8 "${rows[@]}" --wire assignment --experts 384 --tokens 2048 -i 8
    alone l-ep64 60 64 --transport ragged --waves 1 --wire assignment --experts 384 --tokens 1024 -i 6 --no-check
    alone l-uniform 40 2 "${rows[@]}" --wire assignment --experts 64 --tokens 4096 -i 8 --no-check
    alone l-one 40 2 "${rows[@]}" --wire assignment --experts 64 --tokens 4096 -i 8 --skew one-expert --no-check
    alone l-ragged 40 2 "${rows[@]}" --wire assignment --experts 256 --tokens 8192 -i 10 "${whole[@]}" --no-check
    alone l-pooled 40 2 --transport pooled_wave --batch indexed --experts 256 --tokens 8192 -i 8 --no-check
    alone l-backward 40 2 "${rows[@]}" --experts 256 --tokens 4096 -i 8 --op all
    # Two ranks with 12 multiprocessors each: 24 of their GPU.
    alone l-budget 40 2 "${rows[@]}" --experts 256 --tokens 8192 -i 8 --sm-budget 12 --beside --no-check
    CUDA_VISIBLE_DEVICES=$last item calibrate 40 "$build/bin/epx-perf" --json --device cuda --width 7168 \
        --calibrate "$logs/machine.json" || status=1
else
    for name in ep2 ep8 ep64 uniform one ragged pooled backward budget; do
        leave_out "l-$name" 'not among the parts of --only'
    done > /dev/null
fi
wait

if [ $do_check = 1 ] && wanted check; then
    stage tests
    left=$((most - SECONDS + begin))
    # Most of it is for what runs side by side, the rest for what needs all GPUs alone.
    TEST_BUILD="$PWD/$build" PYTHON=$python GPU_SECONDS=${GPU_SECONDS:-$((left > 100 ? left * 6 / 10 : 60))} timeout -k 5 $((left > 30 ? left : 30)) mk/check-gpu.sh "$build/tests/gpu" \
        "$build/tests/alone-conformance" "$build/tests/alone-fuzz" "$build/tests/alone-gpus" 2>&1 | tee "$logs/check.log" || status=1
    cp -r "$build/check-gpu" "$logs/"
else
    leave_out check 'not asked for'
fi

table
exit $status
