# Hosts that are really apart: network name spaces joined by veth pairs over a bridge. Uneven ranks per host, delay
# where the kernel has netem, and a link that is cut in the middle.
# shellcheck shell=bash source=tests/support/shell.sh
. "$(dirname "$0")/../support/shell.sh"
skip() {
    echo "$1"
    exit 77
}
[ -z "${SANITIZE:-}" ] || skip 'the sanitizers look at ranks that are threads'
"$bin/epx-info" -b | grep -Eq '^ucx +yes' || skip 'this build has no UCX'
command -v ip > /dev/null || skip 'no ip (iproute2) here'
tag=epx$$
folder=$(mktemp -d)
clean() {
    for h in 0 1 2; do ip netns del "$tag-$h"; done
    ip link del "$tag"
    rm -rf "$folder" "$folder.survive" "$out" "$err"
} 2> /dev/null
trap clean EXIT
ip netns add "$tag-0" 2> /dev/null || skip 'network name spaces are not permitted here'
ip link add "$tag" type bridge 2> /dev/null || skip 'this kernel has no bridge'
ip link set "$tag" up
for h in 0 1 2; do
    [ "$h" = 0 ] || ip netns add "$tag-$h"
    ip link add "v$h$tag" type veth peer name eth0 netns "$tag-$h" 2> /dev/null || skip 'this kernel has no veth'
    ip link set "v$h$tag" master "$tag" up
    ip -n "$tag-$h" addr add "10.99.7.$((h + 1))/24" dev eth0
    ip -n "$tag-$h" link set eth0 up
    ip -n "$tag-$h" link set lo up
done
export UCX_HANDLE_ERRORS=none UCX_LOG_LEVEL=fatal UCX_NET_DEVICES=eth0 UCX_TLS=tcp,self EPX_WIRE=assignment

# start HOSTS ARGUMENT...: rank r runs on the host that is the r-th word.
start() {
    local hosts=($1) r
    shift
    pid=()
    rm -f "$folder"/*
    for r in "${!hosts[@]}"; do
        EPX_RANK=$r EPX_WORLD_SIZE=${#hosts[@]} EPX_ROOT=10.99.7.1:29500 timeout -k 5 100 \
            ip netns exec "$tag-${hosts[r]}" "$bin/epx-train" --preset tiny "$@" > "$folder/out.$r" 2> "$folder/err.$r" &
        pid[r]=$!
    done
}
gather() {
    local r
    codes=
    for r in "${!pid[@]}"; do
        wait "${pid[r]}"
        codes="$codes $r:$?"
    done
    cat "$folder"/out.* > "$out"
    cat "$folder"/err.* > "$err"
}
losses() { grep -o '"loss": *[0-9.e+-]*' "$1" | head -n 4; }

run epx-train --preset tiny --ranks 4 --steps 3 --metrics "$out.threads"
threads=$(losses "$out.threads")
rm -f "$out.threads"
for hosts in '0 0 0 1' '0 1 2 2'; do
    last="hosts $hosts"
    start "$hosts" --steps 3 --metrics "$folder/metrics"
    gather
    checks=$((checks + 2))
    [ "$codes" = ' 0:0 1:0 2:0 3:0' ] || wrong "codes$codes"
    [ "$(losses "$folder/metrics" 2> /dev/null)" = "$threads" ] || wrong 'other losses than threads'
done

if ip netns exec "$tag-1" tc qdisc add dev eth0 root netem delay 5ms 2> /dev/null; then
    last='5 ms of delay'
    start '0 0 1 1' --steps 2
    gather
    checks=$((checks + 1))
    [ "$codes" = ' 0:0 1:0 2:0 3:0' ] || wrong "codes$codes"
    ip netns exec "$tag-1" tc qdisc del dev eth0 root
else
    echo 'this kernel has no netem: delay is left out'
fi

last='a link that is cut'
export EPX_TIMEOUT_MS=3000
start '0 0 0 1' --steps 100000
for ((i = 0; i < 150; i++)); do
    grep -q '^step' "$folder/out.0" && break
    sleep 0.1
done
ip link set "v1$tag" down
began=$(date +%s%3N)
for r in 0 1 2; do
    wait "${pid[r]}"
    checks=$((checks + 1))
    grep -q 'rank 3' "$folder/err.$r" || wrong "rank $r does not name rank 3: $(tail -n 3 "$folder/err.$r")"
done
took=$(($(date +%s%3N) - began))
checks=$((checks + 1))
[ "$took" -lt 8000 ] || wrong "it took $took ms"
wait "${pid[3]}"
checks=$((checks + 1))
grep -Eq 'rank [012]' "$folder/err.3" || wrong "rank 3 names nobody: $(tail -n 3 "$folder/err.3")"

# The group goes on after a cut, each side by itself: three and one, then two and two.
last='compiling examples/survive.c'
checks=$((checks + 1))
"${TEST_CC:-cc}" -std=c11 -D_GNU_SOURCE -O1 -Wall -Iinclude -o "$folder.survive" examples/survive.c -L"$TEST_BUILD/lib" -lepx \
    -Wl,-rpath,"$TEST_BUILD/lib" 2> "$err" || wrong 'it does not compile'
# cut_and_recover HOSTS TRANSPORTS
cut_and_recover() {
    local place r p i others count took most=0 ranks
    last="a cut between hosts $1 over $2, and recovery"
    export UCX_TLS=$2
    ip link set "v1$tag" up
    read -ra place <<< "$1"
    ranks=${#place[@]}
    pid=()
    rm -f "$folder"/*
    for r in "${!place[@]}"; do
        EPX_RANK=$r EPX_WORLD_SIZE=$ranks EPX_ROOT=10.99.7.1:29501 timeout -k 5 60 ip netns exec "$tag-${place[r]}" \
            "$folder.survive" 1000000000 50 > "$folder/out.$r" 2> "$folder/err.$r" &
        pid[r]=$!
    done
    for ((i = 0; i < 300; i++)); do
        [ "$(cat "$folder"/out.* | grep -c 'first step')" = "$ranks" ] && break
        sleep 0.1
    done
    ip link set "v1$tag" down
    began=$(date +%s%3N)
    for r in "${!place[@]}"; do
        wait "${pid[r]}"
        code=$?
        cp "$folder/out.$r" "$out" && cp "$folder/err.$r" "$err"
        expect_code 0
        others='' count=0
        for p in "${!place[@]}"; do
            [ "${place[p]}" = "${place[r]}" ] && count=$((count + 1)) || others="$others|$p"
        done
        expect_out "^rank $r: at [0-9]+ ms: EPX_ERR_(PEER|TIMEOUT): .*rank (${others#|})([^0-9]|\$)"
        expect_out "^rank $r: at [0-9]+ ms: recovered, rank [0-9]+ of $count now"
        expect_out "^rank $r: 50 steps among $count ranks were right"
        took=$(($(sed -n "s/^rank $r: at \([0-9]*\) ms: EPX_ERR.*/\1/p" "$out" | head -n 1) - began))
        checks=$((checks + 1))
        [ $took -lt $((EPX_TIMEOUT_MS + 1000)) ] || wrong "rank $r said it after $took ms"
        [ $took -le $most ] || most=$took
    done
    echo "$last: all $ranks ranks said it within $most ms (limit $((EPX_TIMEOUT_MS + 1000)))"
    checks=$((checks + 1))
    ! pgrep -f "^$folder.survive" > /dev/null || wrong "processes left behind: $(pgrep -af "^$folder.survive")"
}
cut_and_recover '0 0 0 1' tcp,self
cut_and_recover '0 1 1 0' tcp,self
# Ranks of one host share memory, and TCP goes between hosts.
cut_and_recover '0 0 1 1' tcp,sysv,posix,self
cut_and_recover '0 0 0 0 0 0 0 0 0 1 1 1 1 1 1 1' tcp,sysv,posix,self
finish
