# RDMA=all, on host 0: all of conformance, for hours, or a part of it.
# shellcheck shell=sh

# In parts, each with its own line when it is through: it is seen how far it has come, and a part that hangs costs its own
# time alone. No part begins that the machine's time may be too short for.
part_seconds=3600
conform() {
    run="timeout $part_seconds processes-conformance --jobs 1 --timeout 900 --slowest 5 --part $1"
    far "export UCX_TLS=ud,self; $run 2>&1" > /tmp/ud &
    ud=$!
    (export UCX_TLS=rc,self && $run) > /tmp/rc 2>&1
    wait $ud
    check "conformance over UCX_TLS=rc,self, part $1" passes /tmp/rc 1
    check "conformance over UCX_TLS=ud,self, part $1" passes /tmp/ud 1
}
part=$(cat /part)
if [ "$part" != 1/1 ]; then
    conform "$part"
    return 0
fi
number=1 parts=60
while [ $number -le $parts ]; do
    if [ $(($(cut -d. -f1 /proc/uptime) + 2 * part_seconds)) -gt "$(cat /limit)" ]; then
        echo "skipped: parts $number to $parts of $parts of conformance: the time of RDMA_TIMEOUT is short"
        break
    fi
    conform $number/$parts
    number=$((number + 1))
done

# Processes on two hosts train, with the losses of threads.
train() { epx-train --preset tiny --steps 2 --batch 1 "$@"; }
losses() { grep -o 'step .* loss [0-9.]*' "$1"; }
same_losses() {
    losses "$1" > "$1.losses"
    losses "$2" > "$2.losses"
    [ -s "$1.losses" ] && cmp "$1.losses" "$2.losses"
}
train --ranks 2 > /tmp/threads 2>&1
for over in rc ud; do
    world="EPX_WORLD_SIZE=2 EPX_ROOT=10.0.0.1:29700 UCX_TLS=$over,self"
    far "env $world EPX_RANK=1 epx-train --preset tiny --steps 2 --batch 1 --ep 2 --replicas 1" > /tmp/other &
    other=$!
    (export $world EPX_RANK=0 && train --ep 2 --replicas 1) > /tmp/processes 2>&1
    wait $other
    check "over $over two hosts train with the losses of threads" same_losses /tmp/processes /tmp/threads
done
