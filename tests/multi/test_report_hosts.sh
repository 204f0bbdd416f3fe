#!/bin/bash
# Ranks whose records are in folders that the others cannot see, as on several hosts: one report names the culprit
# wherever it is, and epx-doctor puts the folders together.
# shellcheck source=tests/support/shell.sh
. tests/support/shell.sh
skip() {
    echo "$1"
    exit 77
}
[ -z "${SANITIZE:-}" ] || skip 'the sanitizers look at ranks that are threads'
"$bin/epx-info" -b | grep -Eq '^ucx +yes' || skip 'this build has no UCX'
folder=$(mktemp -d /dev/shm/epx-report-XXXXXX)
trap 'rm -rf "$folder" "$out" "$err"' EXIT
export UCX_HANDLE_ERRORS=none UCX_LOG_LEVEL=fatal UCX_TLS=tcp,self EPX_HANG_MS=1500 EPX_ON_HANG=abort EPX_WORLD_SIZE=4
port=$((20000 + $$ % 12000))
# Hosts were started at different times: their monotonic clocks have nothing to do with each other.
apart=(unshare --time --monotonic 100000 --boottime 100000)
"${apart[@]}" true 2> /dev/null || apart=()

# play FAULT HOST...: rank r has its record in the folder of the r-th host.
play() {
    local fault=$1 r hosts=("${@:2}")
    rm -rf "${folder:?}"/*
    port=$((port + 20))
    local clock
    for r in 0 1 2 3; do
        clock=()
        [ "${hosts[r]}" = 0 ] || clock=("${apart[@]}")
        EPX_RANK=$r EPX_ROOT=127.0.0.1:$port EPX_RECORD=$folder/host${hosts[r]} EPX_FAULT=$fault \
            timeout -k 2 30 "${clock[@]}" "$bin/epx-train" --preset tiny --steps 100000 > "$folder/out.$r" 2> "$folder/err.$r" &
        pid[r]=$!
    done
    codes=
    for r in 0 1 2 3; do
        wait "${pid[r]}"
        codes="$codes $?"
    done
    cat "$folder"/err.* > "$out"
}
expect_one_report() {
    checks=$((checks + 1))
    [ "$(grep -c '^epx: job ' "$out")" = 1 ] || wrong "$(grep -c '^epx: job ' "$out") reports"
}

last='a rank of the second host is busy before an all-reduce'
play 'group=world rank=3 op=allreduce seq=40 at=begin do=spin:8000' 0 0 1 1
expect_one_report
expect_out '^epx: job .* is stuck: STUCK_BEFORE_OP\(rank 3\)'
expect_out '^  records +all 4'
checks=$((checks + 1))
[ "$codes" = ' 75 75 75 75' ] || { echo "codes$codes"; wrong "codes$codes"; }
run epx-doctor --all "$folder/host0" "$folder/host1"
expect_out '^ +3 +0 '
expect_no_out 'no record'

last='a rank of the first host is killed'
play 'group=world rank=1 op=allreduce seq=40 at=begin do=kill' 0 0 1 1
expect_one_report
expect_out '^epx: job .* is stuck: HOST_ABSENT\(rank 1\)'
checks=$((checks + 1))
[ "$codes" = ' 76 137 76 76' ] || { echo "codes$codes"; wrong "codes$codes"; }

last='a rank alone on its host is killed'
play 'group=world rank=2 op=allreduce seq=40 at=begin do=kill' 0 0 1 0
expect_one_report
expect_out '^epx: job .* is stuck: HOST_ABSENT\(rank 2\)'
finish
