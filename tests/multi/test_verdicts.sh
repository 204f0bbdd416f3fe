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
    root=127.0.0.1:$((20000 + RANDOM % 20000))
    (EPX_RANK=1 EPX_TRANSPORT=ring EPX_WORLD_SIZE=2 EPX_ROOT=$root UCX_LOG_LEVEL=fatal timeout 60 "$bin/epx-train" \
        "${small[@]}" --ep 2 > /dev/null 2>&1; echo $? > "$folder/other") &
    EPX_RANK=0 EPX_WORLD_SIZE=2 EPX_ROOT=$root UCX_LOG_LEVEL=fatal run epx-train "${small[@]}" --ep 2
    wait
    last='epx-train, ranks with other transports'
    expect_code 77
    [ "$(cat "$folder/other")" = 77 ] || wrong "rank 1 left with $(cat "$folder/other"), not 77"
    expect_err 'ranks disagree on the transport: rank 0 has ragged, rank 1 has ring \(EPX_ERR_MISMATCH\)|EPX_ERR_MISMATCH'
fi
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
