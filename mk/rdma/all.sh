# RDMA=all, on host 0: all of conformance, for hours, or a part of it.
# shellcheck shell=sh

part=$(cat /part)
far "export UCX_TLS=ud,self; processes-conformance --jobs 1 --timeout 900 --slowest 20 --part $part 2>&1" > /tmp/ud &
ud=$!
(export UCX_TLS=rc,self && processes-conformance --jobs 1 --timeout 900 --slowest 20 --part "$part") > /tmp/rc 2>&1
wait $ud
check "conformance over UCX_TLS=rc,self, part $part" passes /tmp/rc 1
check "conformance over UCX_TLS=ud,self, part $part" passes /tmp/ud 1
[ "$part" = 1/1 ] || return 0

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
