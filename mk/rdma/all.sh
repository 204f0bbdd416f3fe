# RDMA=all, on host 0: all of conformance, for hours, or a part of it.
# shellcheck shell=sh

# In parts, each with its own line when it is through: it is seen how far it has come, and a part that hangs or dies costs
# its own time alone, and is told. No part begins that the machine's time may be too short for, or without the other host:
# what was not tried is not passed.
part_seconds=3600
conform() {
    run="timeout $part_seconds processes-conformance --jobs 1 --timeout 900 --slowest 5 --part $1"
    (far_seconds=$((part_seconds + 60)) && far "export UCX_TLS=ud,self; $run 2>&1") > /tmp/ud &
    ud=$!
    (export UCX_TLS=rc,self && $run) > /tmp/rc 2>&1
    wait $ud
    check "conformance over UCX_TLS=rc,self, part $1" passes /tmp/rc 1
    check "conformance over UCX_TLS=ud,self, part $1" passes /tmp/ud 1
}
answers() { [ "$(far_seconds=20 && far 'echo here')" = here ]; }
enough_time() { [ $(($(cut -d. -f1 /proc/uptime) + 2 * part_seconds)) -le "$(cat /limit)" ]; }
part=$(cat /part)
if [ "$part" != 1/1 ]; then
    conform "$part"
    return 0
fi
# Functions of lib.sh set variables too: this one is none of theirs.
turn=1 parts=60
while [ $turn -le $parts ]; do
    left="parts $turn to $parts of $parts of conformance were not tried"
    answers || { echo "not ok - $left: the other host does not answer" && break; }
    enough_time || { echo "not ok - $left: the time of RDMA_TIMEOUT is short" && break; }
    conform $turn/$parts
    turn=$((turn + 1))
done

# Processes on two hosts train, with the losses of threads.
train() { timeout $part_seconds epx-train --preset tiny --steps 2 --batch 1 "$@"; }
losses() { grep -o 'step .* loss [0-9.]*' "$1"; }
same_losses() {
    losses "$1" > "$1.losses"
    losses "$2" > "$2.losses"
    [ -s "$1.losses" ] && cmp "$1.losses" "$2.losses"
}
train --ranks 2 > /tmp/threads 2>&1
for over in rc ud; do
    world="EPX_WORLD_SIZE=2 EPX_ROOT=10.0.0.1:29700 UCX_TLS=$over,self"
    (far_seconds=$part_seconds && far "env $world EPX_RANK=1 timeout $part_seconds epx-train --preset tiny --steps 2 \
        --batch 1 --ep 2 --replicas 1") > /tmp/other &
    other=$!
    (export $world EPX_RANK=0 && train --ep 2 --replicas 1) > /tmp/processes 2>&1
    wait $other
    check "over $over two hosts train with the losses of threads" same_losses /tmp/processes /tmp/threads
done
