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
