# The NIC of a rank's place is the one that UCX uses: a machine of two packages with an RDMA device beside each
# (tests/unit/machines/two-rails.xml), whose interfaces are veth pairs here. What somebody says himself goes before.
# shellcheck shell=bash source=tests/support/shell.sh
. "$(dirname "$0")/../support/shell.sh"
skip() {
    echo "$1"
    exit 77
}
[ -z "${SANITIZE:-}" ] || skip 'the sanitizers look at ranks that are threads'
for part in ucx hwloc; do "$bin/epx-info" -b | grep -Eq "^$part +yes" || skip "this build has no $part"; done
command -v ip > /dev/null || skip 'no ip (iproute2) here'
tag=nic$$
folder=$(mktemp -d)
clean() {
    ip netns del "$tag"
    rm -rf "$folder" "$out" "$err"
} 2> /dev/null
trap clean EXIT
ip netns add "$tag" 2> /dev/null || skip 'network name spaces are not permitted here'
ip -n "$tag" link set lo up
for n in 0 1; do
    ip -n "$tag" link add "eth$n" type veth peer name "peer$n" 2> /dev/null || skip 'this kernel has no veth'
    ip -n "$tag" addr add "10.99.$((8 + n)).1/24" dev "eth$n"
    ip -n "$tag" link set "peer$n" up
    ip -n "$tag" link set "eth$n" up
done
export UCX_TLS=tcp,self UCX_LOG_LEVEL=info UCX_HANDLE_ERRORS=none EPX_LOG=info

# train WHAT VARIABLE...: two ranks on that machine; what rank r says is in $folder/err.r.
train() {
    local r
    last=$1
    shift
    for r in 0 1; do
        env "$@" EPX_RANK=$r EPX_WORLD_SIZE=2 EPX_ROOT=127.0.0.1:29500 timeout -k 5 100 ip netns exec "$tag" \
            "$bin/epx-train" --preset tiny --steps 1 > "$folder/out.$r" 2> "$folder/err.$r" &
        pid[r]=$!
    done
    for r in 0 1; do
        wait "${pid[r]}"
        code=$?
        cat "$folder/out.$r" "$folder/err.$r" > "$err"
        expect_code 0
        # UCX prints its log to standard output.
        cat "$folder/out.$r" "$folder/err.$r" | grep -o 'tcp/[a-z0-9]*' | sort -u | tr '\n' ' ' > "$folder/used.$r"
    done
}
# uses RANK DEVICES: the network devices that UCX says this rank has connections through.
uses() {
    checks=$((checks + 1))
    [ "$(cat "$folder/used.$1")" = "$2" ] || wrong "rank $1 uses '$(cat "$folder/used.$1")', not '$2'"
}

machine=(HWLOC_XMLFILE="$PWD/tests/unit/machines/two-rails.xml" HWLOC_THISSYSTEM=1)
train 'a NIC for each rank' "${machine[@]}"
uses 0 'tcp/eth0 '
uses 1 'tcp/eth1 '
expect_err 'ucx: uses eth1, the nearest NIC'
train 'UCX_NET_DEVICES goes before' "${machine[@]}" UCX_NET_DEVICES=eth1
uses 0 'tcp/eth1 '
uses 1 'tcp/eth1 '
checks=$((checks + 1))
! grep -q 'nearest NIC' "$folder"/err.* || wrong 'a NIC is chosen all the same'
train 'EPX_PIN=off' "${machine[@]}" EPX_PIN=off
checks=$((checks + 1))
! grep -q 'nearest NIC' "$folder"/err.* || wrong 'a NIC is chosen all the same'
finish
