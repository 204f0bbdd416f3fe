# Processes as ranks: launchers' variables, the meeting and what disturbs it, and what becomes of a rank that dies.
# shellcheck shell=bash source=tests/support/shell.sh
. "$(dirname "$0")/../support/shell.sh"
folder=$(mktemp -d)
trap 'rm -rf "$folder" "$out" "$err"' EXIT
# Leftovers of a crash must not look like a success.
export UCX_HANDLE_ERRORS=none UCX_LOG_LEVEL=fatal
# The wire would follow what the fabric costs, and the last digits the wire.
export EPX_WIRE=assignment
train="$bin/epx-train"

has_ucx=
"$bin/epx-info" -b | grep -Eq '^ucx +yes' && has_ucx=1
[ -n "$has_ucx" ] || echo 'this build has no UCX: groups of processes are left out'

port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
now() { date +%s%3N; }

# start N COMMAND...: one process for each of N ranks; $pid has them, their words are in $folder/out.R and err.R.
# Those in $absent are left out.
start() {
    local n=$1 r
    shift
    pid=()
    for ((r = 0; r < n; r++)); do
        case " ${absent:-} " in *" $r "*) continue ;; esac
        EPX_RANK=$r EPX_WORLD_SIZE=$n EPX_ROOT=$root timeout -k 5 120 "$@" > "$folder/out.$r" 2> "$folder/err.$r" &
        pid[r]=$!
    done
}

# gather: waits for all; $codes has "rank:code ...", $out and $err what rank 0 said and all said wrongly.
gather() {
    local r
    codes=
    for r in "${!pid[@]}"; do
        wait "${pid[r]}"
        codes="$codes $r:$?"
    done
    codes=${codes# }
    cat "$folder"/out.* > "$out"
    cat "$folder"/err.* > "$err"
}

expect_codes() {
    checks=$((checks + 1))
    [ "$codes" = "$1" ] || wrong "codes $codes, not $1"
}

# of RANK PATTERN: this rank's standard error says so.
of() {
    checks=$((checks + 1))
    grep -Eq -- "$2" "$folder/err.$1" || wrong "rank $1 does not say: $2; it says: $(tail -n 3 "$folder/err.$1")"
}

losses() { grep -o '"loss": *[0-9.e+-]*' "$1" | head -n 6; }

try="--preset tiny --steps 3"
# shellcheck disable=SC2086
run epx-train $try --ranks 4 --metrics "$folder/threads.jsonl"
expect_code 0

# ---- the same losses, however the ranks were started -----------------------------------------------------------

same_losses() {
    checks=$((checks + 1))
    [ -s "$1" ] && [ "$(losses "$folder/threads.jsonl")" = "$(losses "$1")" ] || wrong "other losses than threads: $1"
}

if [ -n "$has_ucx" ]; then
    last='four processes'
    root=127.0.0.1:$(port)
    # shellcheck disable=SC2086
    start 4 "$train" $try --metrics "$folder/plain.jsonl"
    gather
    expect_codes '0:0 1:0 2:0 3:0'
    same_losses "$folder/plain.jsonl"
    expect_out 'on fabric ucx'
    checks=$((checks + 1))
    [ "$(cat "$folder"/out.[123] | wc -c)" = 0 ] || wrong 'ranks beside 0 print'

    last='four processes over TCP and IPv6'
    root="[::1]:$(port)"
    export UCX_TLS=tcp
    # shellcheck disable=SC2086
    start 4 "$train" $try --metrics "$folder/tcp.jsonl"
    gather
    unset UCX_TLS
    expect_codes '0:0 1:0 2:0 3:0'
    same_losses "$folder/tcp.jsonl"

    last="torchrun's variables"
    base=$(port) pid=()
    for r in 0 1 2 3; do
        RANK=$r WORLD_SIZE=4 LOCAL_RANK=$r LOCAL_WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=$base \
            timeout 120 "$train" --preset tiny --steps 3 --metrics "$folder/torch.jsonl" \
            > "$folder/out.$r" 2> "$folder/err.$r" &
        pid[r]=$!
    done
    gather
    expect_codes '0:0 1:0 2:0 3:0'
    same_losses "$folder/torch.jsonl"

    last="Slurm's variables"
    pid=()
    for r in 0 1 2 3; do
        SLURM_JOB_ID=$$ SLURM_STEP_ID=0 SLURM_NTASKS=4 SLURM_PROCID=$r SLURM_LOCALID=$r SLURM_STEP_NODELIST=localhost \
            timeout 120 "$train" --preset tiny --steps 3 --metrics "$folder/slurm.jsonl" \
            > "$folder/out.$r" 2> "$folder/err.$r" &
        pid[r]=$!
    done
    gather
    expect_codes '0:0 1:0 2:0 3:0'
    same_losses "$folder/slurm.jsonl"

    if /usr/bin/python3 -c 'import torch.distributed' 2> /dev/null; then
        last=torchrun
        # -r and -t: PyTorch 1.13 cannot read its own default of 0 with Python 3.11.
        timeout 120 /usr/bin/python3 -m torch.distributed.run --nproc_per_node 4 --master_port "$(port)" -r 2 -t 2 --no_python \
            "$train" --preset tiny --steps 3 --metrics "$folder/run.jsonl" > "$out" 2> "$err"
        code=$?
        expect_code 0
        expect_out 'on fabric ucx'
        same_losses "$folder/run.jsonl"
    else
        echo 'PyTorch is not here: torchrun is left out'
    fi

    if command -v mpirun > /dev/null; then
        last=mpirun
        OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 120 mpirun --oversubscribe -n 4 "$train" \
            --preset tiny --steps 3 --metrics "$folder/mpi.jsonl" > "$out" 2> "$err"
        code=$?
        expect_code 0
        same_losses "$folder/mpi.jsonl"
    else
        echo 'mpirun is not here: it is left out'
    fi
fi

# ---- the meeting -----------------------------------------------------------------------------------------------

export EPX_TIMEOUT_MS=3000
last='two ranks that do not come'
root=127.0.0.1:$(port) absent='2 3' began=$(now)
# shellcheck disable=SC2086
start 5 "$train" $try
absent=
gather
expect_codes '0:1 1:1 4:1'
for r in 0 1 4; do of $r 'ranks 2-3'; done
checks=$((checks + 1))
[ $(($(now) - began)) -lt 8000 ] || wrong "it took $(($(now) - began)) ms"

last='no rank 0'
root=127.0.0.1:$(port) absent='0'
# shellcheck disable=SC2086
start 2 "$train" $try
absent=
gather
expect_codes '1:1'
of 1 'rank 0 at 127.0.0.1 .*EPX_ROOT'

last='a rank that is there twice'
root=127.0.0.1:$(port)
# shellcheck disable=SC2086
start 3 env EPX_RANK=0 true
gather
pid=()
for who in 0 1 1; do
    EPX_RANK=$who EPX_WORLD_SIZE=3 EPX_ROOT=$root timeout 60 "$train" --preset tiny --steps 1 \
        > /dev/null 2> "$folder/err.${#pid[@]}" &
    pid+=($!)
    sleep 0.3
done
gather
of 2 'rank 1 is there already'
of 0 'rank 2'

last='wrong variables'
EPX_WORLD_SIZE=many EPX_RANK=0 run epx-train --preset tiny
expect_code 2
expect_err 'EPX_WORLD_SIZE=many'
EPX_WORLD_SIZE=4 EPX_RANK=4 run epx-train --preset tiny
expect_code 2
expect_err 'EPX_RANK is 4.* 0 to 3'
EPX_WORLD_SIZE=4 EPX_RANK=1 run epx-train --preset tiny
expect_code 2
expect_err 'EPX_ROOT is not set'
EPX_WORLD_SIZE=4 EPX_RANK=1 EPX_ROOT=::1:5000 run epx-train --preset tiny
expect_code 2
expect_err 'in brackets'
unset EPX_TIMEOUT_MS

if [ -n "$has_ucx" ]; then
    last='strangers and garbage at the door'
    number=$(port) root=127.0.0.1:$number
    (
        until (exec 3<> "/dev/tcp/127.0.0.1/$number") 2> /dev/null; do sleep 0.02; done
        for ((i = 0; i < 30; i++)); do
            {
                exec 3<> "/dev/tcp/127.0.0.1/$number" && head -c $((i * 37)) /dev/urandom >&3
                [ $((i % 3)) = 0 ] || exec 3>&-
            } 2> /dev/null
        done
        sleep 2
    ) &
    stranger=$!
    pid=()
    for r in 0 1 2; do
        EPX_RANK=$r EPX_WORLD_SIZE=3 EPX_ROOT=$root timeout 60 "$train" --preset tiny --steps 2 --ep 3 \
            > "$folder/out.$r" 2> "$folder/err.$r" &
        pid[r]=$!
        sleep 0.4
    done
    rm -f "$folder/err.3" "$folder/err.4"
    gather
    expect_codes '0:0 1:0 2:0'
    wait $stranger

    last='hardly any open files'
    root=127.0.0.1:$(port)
    # shellcheck disable=SC2016
    start 2 bash -c 'ulimit -n 24; exec "$0" --preset tiny --steps 2' "$train"
    gather
    expect_codes '0:1 1:1'
    expect_err 'may open 24 files, and UCX needs 64 .*ulimit -n'
    last='open files that others have taken'
    root=127.0.0.1:$(port)
    # shellcheck disable=SC2016
    start 2 bash -c 'for i in {10..79}; do eval "exec $i< /dev/null"; done
        ulimit -n 100; exec "$0" --preset tiny --steps 2' "$train"
    gather
    expect_codes '0:1 1:1'
    expect_err 'may open 100 files and has [78][0-9] open, and UCX needs 40 more .*ulimit -n'

    # ---- ranks that die or stop ------------------------------------------------------------------------------------

    # lose SIGNAL WHICH LIMIT_MS: all others name it in time, and nobody is left behind.
    lose() {
        local victim=$2 began r
        last="SIG$1 of rank $victim${UCX_TLS:+ over $UCX_TLS}"
        root=127.0.0.1:$(port)
        start 4 "$train" --preset tiny --steps 100000
        for ((i = 0; i < 100; i++)); do
            grep -q '^step' "$folder/out.0" && break
            sleep 0.1
        done
        began=$(now)
        # Not the watchdog of timeout: its child, which is the rank.
        victim_pid=$(pgrep -P "${pid[victim]}")
        kill "-$1" "$victim_pid"
        for r in 0 1 2 3; do
            [ "$r" = "$victim" ] || wait "${pid[r]}"
        done
        took=$(($(now) - began))
        kill -KILL "$victim_pid" 2> /dev/null
        wait "${pid[victim]}" 2> /dev/null
        checks=$((checks + 1))
        [ $took -lt "$3" ] || wrong "it took $took ms, not under $3"
        for r in 0 1 2 3; do
            [ "$r" = "$victim" ] || of "$r" "rank $victim"
        done
    }
    lose KILL 2 2000
    lose KILL 0 2000
    EPX_TIMEOUT_MS=2000
    export EPX_TIMEOUT_MS
    lose STOP 1 3000
    export UCX_TLS=tcp
    lose KILL 3 2000
    lose STOP 2 3000
    unset UCX_TLS EPX_TIMEOUT_MS
fi

last='processes left behind'
checks=$((checks + 1))
! pgrep -f "$train --preset tiny --steps 100000" > /dev/null || wrong "$(pgrep -af "$train")"
finish
