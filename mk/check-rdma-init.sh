#!/bin/sh
# The first and only process of check-rdma's virtual machine. Prints "ok - WHAT" or "not ok - WHAT" for each test.
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /tmp
mount -t tmpfs tmpfs /dev/shm
for module in udp_tunnel ip6_udp_tunnel crc32_generic ib_core iw_cm ib_cm ib_uverbs rdma_rxe dummy; do
    [ ! -e /modules/$module.ko ] || insmod /modules/$module.ko 2> /tmp/insmod || cat /tmp/insmod
done
ip link set lo up
ip link add dummy0 type dummy 2> /dev/null
ip addr add 10.0.0.1/24 dev dummy0
ip link set dummy0 mtu 4200
ip link set dummy0 up
rdma link add rxe0 type rxe netdev dummy0
ulimit -l unlimited 2> /dev/null

failures=0
# check WHAT COMMAND...: its output is shown when it fails.
check() {
    what=$1
    shift
    if "$@" > /tmp/output 2>&1; then
        echo "ok - $what"
    else
        echo "not ok - $what"
        cat /tmp/output
        failures=1
    fi
}
has() { grep -Eq "$1" "$2" || { cat "$2" && false; }; }
lacks() { ! grep -Eq "$1" "$2" || { cat "$2" && false; }; }

# ---- health: a real port, without counters/ ----
echo "kernel $(cat /proc/sys/kernel/osrelease), rxe0 $(cat /sys/class/infiniband/rxe0/ports/1/state)"
check 'soft-RoCE has no counters folder' [ ! -e /sys/class/infiniband/rxe0/ports/1/counters ]
epx-health --nvml none --json > /tmp/health.json 2>&1
check 'a port without counters folder is OK by its hw_counters, exit code 0' [ $? = 0 ]
check 'its verdict is OK' has '"verdict": "OK"' /tmp/health.json
check 'its device was opened for events' lacks 'events of ports' /tmp/health.json
check 'events are counted by port' has 'async_port_err' /tmp/health.json

# ---- transports over RDMA ----
# Before the port goes down. By the address that the port has from IPv6: with the IPv4 one packets arrive (rcvd_pkts), but
# UCX 1.13's endpoints see no acknowledgement and time out.
export UCX_IB_GID_INDEX=0 UCX_NET_DEVICES=rxe0:1 UCX_HANDLE_ERRORS=none UCX_LOG_LEVEL=error
# train OUTPUT: as processes with plain variables; the losses go to OUTPUT.
shape='--preset tiny --steps 2 --batch 1'
train() {
    out=$1
    EPX_RANK=1 EPX_WORLD_SIZE=2 EPX_ROOT=127.0.0.1:29500 epx-train $shape --ep 2 --replicas 1 > "$out.1" 2>&1 &
    EPX_RANK=0 EPX_WORLD_SIZE=2 EPX_ROOT=127.0.0.1:29500 epx-train $shape --ep 2 --replicas 1 > "$out" 2>&1
    code=$?
    wait $!
    [ $code = 0 ] || { cat "$out" "$out.1" && false; }
}
losses() { grep -o 'step .* loss [0-9.]*' "$1"; }
same_losses() {
    losses "$1" > "$1.losses"
    losses "$2" > "$2.losses"
    [ -s "$1.losses" ] && cmp "$1.losses" "$2.losses"
}
# conformance FILTER...: a process for each rank; none may fail, and some must run.
conformance() {
    filters=
    for filter in "$@"; do filters="$filters --filter $filter"; done
    # shellcheck disable=SC2086
    processes-conformance --jobs 2 --timeout 100 $filters > /tmp/conformance 2>&1
    code=$?
    grep '^\[' /tmp/conformance
    tail -n 1 /tmp/conformance
    [ $code = 0 ] && grep -q '^[1-9][0-9]* passed, 0 failed' /tmp/conformance
}
cd / || exit
mode=$(cat /ucx)
if [ "$mode" = no ]; then
    echo 'skipped: transports over RDMA: this build has no UCX'
else
    export EPX_WIRE=assignment
    [ "$mode" != all ] || epx-train $shape --ranks 2 > /tmp/threads 2>&1
    for tls in rc ud; do
        export UCX_TLS=$tls,self
        check "every transport by hand, with processes over UCX_TLS=$tls,self" conformance 'by_hand/*'
        [ "$mode" = all ] || continue
        check "two processes train over $tls" train /tmp/processes
        check "over $tls: the losses of threads" same_losses /tmp/processes /tmp/threads
        check "all of conformance over $tls" conformance '*'
    done
fi

# ---- a port that goes down and comes back ----
# until PATTERN FILE: waits for a line, for a minute at most.
until_line() {
    tries=0
    while ! grep -Eq "$1" "$2" 2> /dev/null; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || { echo "no line with $1 came" && return 1; }
        sleep 0.2
    done
}

epx-health --nvml none --watch --interval 0.5 --seconds 120 --history /tmp/samples > /tmp/watch 2>&1 &
watcher=$!
check 'samples are kept' until_line '"state": 4' /tmp/samples
ip link set dummy0 down
check 'a sample has the port down' until_line '"state": 1' /tmp/samples
check 'a port that is down is CORDON' until_line 'rxe0/1  CORDON  .*is not active' /tmp/watch
ip link set dummy0 up
check 'a port that came back is a flap' until_line 'rxe0/1 +WATCH +.*flap: went down and came back once' /tmp/watch
kill -TERM $watcher
wait $watcher
check 'after a flap the watcher ends with 0: keep using it' [ $? = 0 ]
# Down and up between two samples: only the event, or the port's own counter, tells.
epx-health --nvml none --watch --interval 5 --seconds 120 --history /tmp/more > /tmp/events 2>&1 &
watcher=$!
check 'a second watcher has begun' until_line '"state": 4' /tmp/more
ip link set dummy0 down
ip link set dummy0 up
check 'a flap shorter than the interval is seen by its event' until_line '"async_port_err": [1-9]' /tmp/more
check 'and is called a flap' until_line 'flap' /tmp/events
kill -TERM $watcher
wait $watcher
echo 'all was tried'
poweroff -f
