#!/bin/bash
# epx-train leaves with what the verdict's action says, and the rank is found through the loop's own communicators: of
# two and three racks one stays behind, the others stop in the all-reduce between racks.
# shellcheck source=tests/support/shell.sh
. tests/support/shell.sh

# Budgets of half a second are not for sanitizers, nor is a rank that writes nowhere on purpose.
if [ -n "${SANITIZE:-}" ]; then
    echo 'the sanitizers see other tests'
    exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder" "$out" "$err"' EXIT
small=(--layers 2 --width 32 --heads 4 --head-width 8 --sequence 32 --experts 12 --top-k 2 --expert-width 16
    --latent 16 --shared-width 16 --batch 2 --warmup 2 --peak-flops 1e11 --steps 12)
# A route and eight calls for each of two layers: the eighth step begins with 127.
export EPX_HANG_MS=1000 EPX_ON_HANG=abort EPX_TRANSPORT=ragged

# is_stopped PROCESS
is_stopped() { [ -n "$1" ] && [ "$(sed 's/.*) //; s/ .*//' "/proc/$1/stat" 2> /dev/null)" = T ]; }

# play RACKS CODE FAULT: racks of two ranks.
play() {
    rm -rf "$folder/records"
    EPX_RECORD=$folder/records EPX_FAULT=$3 run epx-train "${small[@]}" --ep 2 --replicas "$1" --ranks $((2 * $1))
    last="EPX_FAULT='$3' epx-train with $1 racks"
    expect_code "$2"
}

play 3 75 'group=experts2 rank=1 op=dispatch seq=128 at=begin do=spin:30000'
expect_err '^epx: job .* is stuck: STUCK_BEFORE_OP\(rank 5\)$'
expect_err '^  operation  dispatch of group experts2, wave 0,'
expect_err '^ +ranks 0-3 wait in all_reduce of world wave 0 for rank 4$'
expect_err '^ +rank 4 \(domain 2\) waits in dispatch of experts2 wave 0 for rank 5$'
expect_err '^  versions +epx [0-9.]+, NCCL .*, UCX .*, driver '
play 3 75 'group=experts1 rank=0 op=dispatch seq=128 at=begin do=delay:30000'
expect_err '^epx: job .* is stuck: STREAM_BLOCKED\(rank 2\)$'
expect_err '^  operation  dispatch of group experts1, wave 0,'
play 2 76 'group=experts1 rank=0 op=dispatch seq=128 at=enqueue do=delay:30000'
expect_err '^epx: job .* is stuck: HOST_ABSENT\(rank 2\)$'
expect_err '^ +ranks 0-1 wait in all_reduce of world wave 0 for rank 2$'
play 2 78 'group=experts0 rank=1 op=dispatch seq=128 at=wait.pre do=delay:30000'
expect_err '^epx: job .* is stuck: UNKNOWN$'
# A rank that leaves a call out is in another one under the same number; with two ranks that wait for each other in
# different groups neither is alone outside.
play 1 77 'rank=1 op=combine seq=129 at=enqueue do=skip'
expect_err '^epx: job .* is stuck: DESYNC\(kind\)'
expect_err '^  action     stop'
play 1 77 'group=world rank=1 op=allreduce seq=20 at=enqueue do=skip'
expect_err '^epx: job .* is stuck: DEADLOCK\(0 -> 1 -> 0\)$'
expect_err '^  evidence   rank 0 in all_reduce of world waits for rank 1, rank 1 in route of experts0 waits for rank 0$'
expect_err '^  action     stop'

# A port goes down in the made-up machine of rank 2 while its rank stops: the link came first, the rest are victims.
ports=$folder/sys/class/infiniband/mlx5_2/ports/1
mkdir -p "$ports"
echo '4: ACTIVE' > "$ports/state"
rm -rf "$folder/records"
: > "$out"
(
    for ((i = 0; i < 600; i++)); do
        grep -q '^step      6 ' "$out" && break
        sleep 0.05
    done
    echo '1: DOWN' > "$ports/state"
) &
EPX_RECORD=$folder/records EPX_FAULT='group=experts1 rank=0 op=dispatch seq=128 at=begin do=delay:30000' EPX_HANG_MS=2000 \
    run epx-train "${small[@]}" --ep 2 --replicas 2 --ranks 4 \
    --links none/,none/,mlx5_2/,none/ --sysfs "$folder/sys"
wait
last='epx-train with a port that goes down'
expect_code 76
expect_err '^epx: job .* is stuck: LINK\(rank 2, down\)$'
expect_err '^  evidence   a link that went down of rank 2 came first in time \(mlx5_2/1\)'
expect_err '^  action     go on without the host .*exit code 76'

# Ranks that do not agree are told so before anything is computed; each is a process.
if "$bin/epx-info" -f | grep -Eq '^[* ]*ucx +[0-9]'; then
    # Below what systems give to connections (32768 and more), which others of this machine have.
    root=127.0.0.1:$((20000 + RANDOM % 12000))
    (EPX_RANK=1 EPX_TRANSPORT=ring EPX_WORLD_SIZE=2 EPX_ROOT=$root UCX_LOG_LEVEL=fatal timeout 60 "$bin/epx-train" \
        "${small[@]}" --ep 2 > /dev/null 2>&1; echo $? > "$folder/other") &
    EPX_RANK=0 EPX_WORLD_SIZE=2 EPX_ROOT=$root UCX_LOG_LEVEL=fatal run epx-train "${small[@]}" --ep 2
    wait
    last='epx-train, ranks with other transports'
    expect_code 77
    [ "$(cat "$folder/other")" = 77 ] || wrong "rank 1 left with $(cat "$folder/other"), not 77"
    expect_err 'ranks disagree on the transport: rank 0 has ragged, rank 1 has ring \(EPX_ERR_MISMATCH\)|EPX_ERR_MISMATCH'

    # A rank is killed, then one is stopped, while the group recovers: nobody waits for it until a time-out, which is 60 s.
    # The time begins when it is gone: until then a machine that is busy may take as long as it likes.
    for do in kill stop; do
        root=127.0.0.1:$((20000 + RANDOM % 12000)) fault='rank=1 op=dispatch seq=128 peer=0 at=signal.pre do=drop'
        for seq in 127 128 129 130 131; do
            fault="$fault; rank=2 at=register seq=$seq do=$do"
        done
        rm -rf "$folder/records"
        for r in 2 1 0; do
            EPX_RANK=$r EPX_WORLD_SIZE=3 EPX_ROOT=$root EPX_FAULT=$fault EPX_ON_HANG=failover:pooled_wave EPX_HANG_MS=700 \
                EPX_RECORD=$folder/records UCX_LOG_LEVEL=fatal timeout -k 1 120 "$bin/epx-train" "${small[@]}" --ep 3 \
                > /dev/null 2> "$folder/err.$r" &
            pid[r]=$!
        done
        # A rank that is stopped has no other way to end than to be killed.
        while kill -0 "${pid[2]}" 2> /dev/null && ! is_stopped "$(pgrep -P "${pid[2]}")"; do sleep 0.05; done
        gone=$SECONDS
        last="epx-train, a rank that recovers does $do"
        for r in 0 1; do
            wait "${pid[r]}"
            code=$?
            cp "$folder/err.$r" "$err"
            expect_code 76
            expect_err "rank $r (cannot meet the others at set-up: rank 2 is gone|gave up meeting the others|.*waits.*rank 2)|HOST_ABSENT\\(rank 2\\)"
        done
        checks=$((checks + 1))
        [ $((SECONDS - gone)) -lt 15 ] || wrong "the others left $((SECONDS - gone)) s after rank 2, not within 15"
        pkill -KILL -P "${pid[2]}"
        wait "${pid[2]}" 2> /dev/null
    done
fi

# Somebody tidies up, and the records' folder is gone: the report is made all the same, of the ranks of this process.
rm -rf "$folder/records"
: > "$out"
(
    for ((i = 0; i < 600; i++)); do
        grep -q '^step      6 ' "$out" && break
        sleep 0.02
    done
    rm -rf "$folder/records"
) &
EPX_RECORD=$folder/records EPX_FAULT='rank=1 op=dispatch seq=182 at=begin do=delay:30000' \
    run epx-train "${small[@]}" --steps 12 --ep 2
wait
last='epx-train without the folder of its records'
expect_code 75
expect_err '^epx: job .* is stuck: STREAM_BLOCKED\(rank 1\)$'
expect_err '^  records +all 2'
checks=$((checks + 1))
[ -s "$folder/records/verdict.json" ] || wrong 'no verdict.json'
export EPX_CHECK=canary
play 2 77 'group=experts1 rank=1 op=dispatch seq=128 peer=0 at=put.pre do=drop'
expect_err '^epx: job .* must stop: CORRUPT\(3 -> 2\)$'

# Counts that changed on their way are believed by nobody, checks or not: a count of 2^30 more would be written by.
unset EPX_CHECK
broken='^epx error group: experts0: rank [01], route: the (words|counts) that came from rank 1 cannot be its own'
for transport in ragged ring pooled_wave; do
    export EPX_TRANSPORT=$transport EPX_OVERFLOW=extra_wave
    [ $transport = pooled_wave ] || unset EPX_OVERFLOW
    for bit in 31 222; do
        play 1 77 "rank=1 op=route at=exchange times=1 do=flip:$bit"
        expect_err "$broken"
    done
done
finish
