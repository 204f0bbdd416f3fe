# Ranks that die or stop, and the others that go on: examples/survive.c, a process per rank. Who is gone is told by name
# and in time; the group recovers; the rank that was left behind learns it; no process stays.
# shellcheck shell=bash source=tests/support/shell.sh
. "$(dirname "$0")/../support/shell.sh"
skip() {
    echo "$1"
    exit 77
}
[ -z "${SANITIZE:-}" ] || skip 'the sanitizers look at ranks that are threads'
"$bin/epx-info" -b | grep -Eq '^ucx +yes' || skip 'this build has no UCX'
folder=$(mktemp -d)
trap 'rm -rf "$folder" "$out" "$err"' EXIT
"${TEST_CC:-cc}" -std=c11 -D_GNU_SOURCE -O1 -Wall -Wextra -Werror -Iinclude -o "$folder/survive" examples/survive.c \
    -L"$TEST_BUILD/lib" -lepx -Wl,-rpath,"$TEST_BUILD/lib" 2> "$err" || { last=compiling && wrong 'it does not compile'; }
export UCX_HANDLE_ERRORS=none UCX_LOG_LEVEL=fatal EPX_TIMEOUT_MS=2000

now() { date +%s%3N; }

# start RANKS: ranks that step until something happens; waits for the first step of all.
start() {
    local r i
    pid=()
    rm -f "$folder"/out.* "$folder"/err.*
    root=127.0.0.1:$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    for ((r = 0; r < $1; r++)); do
        EPX_RANK=$r EPX_WORLD_SIZE=$1 EPX_ROOT=$root timeout -k 5 60 "$folder/survive" 1000000000 50 \
            > "$folder/out.$r" 2> "$folder/err.$r" &
        pid[r]=$!
    done
    for ((i = 0; i < 300; i++)); do
        [ "$(cat "$folder"/out.* | grep -c 'first step')" = "$1" ] && return
        sleep 0.1
    done
    wrong 'not all ranks made a first step'
}

# lose SIGNAL VICTIM RANKS LIMIT_MS: the others say within the limit that VICTIM is gone, and go on without it.
lose() {
    local victim=$2 ranks=$3 began r took victim_pid code
    last="SIG$1 of rank $victim of $ranks${UCX_TLS:+ over $UCX_TLS}"
    start "$ranks"
    victim_pid=$(pgrep -P "${pid[victim]}")
    began=$(now)
    kill "-$1" "$victim_pid"
    for ((r = 0; r < ranks; r++)); do
        [ "$r" != "$victim" ] || continue
        wait "${pid[r]}"
        code=$?
        cp "$folder/out.$r" "$out" && cp "$folder/err.$r" "$err"
        expect_code 0
        expect_out "^rank $r: at [0-9]+ ms: EPX_ERR_(PEER|TIMEOUT): .*rank $victim"
        expect_out "^rank $r: at [0-9]+ ms: recovered, rank [0-9]+ of $((ranks - 1)) now"
        expect_out "^rank $r: 50 steps among $((ranks - 1)) ranks were right"
        took=$(($(sed -n "s/^rank $r: at \([0-9]*\) ms: EPX_ERR.*/\1/p" "$out" | head -n 1) - began))
        checks=$((checks + 1))
        [ $took -lt "$4" ] || wrong "rank $r said it after $took ms, not under $4"
        echo "$last: rank $r said it after $took ms"
    done
    kill -CONT "$victim_pid" 2> /dev/null
    wait "${pid[victim]}" 2> /dev/null
    code=$?
    [ "$1" = STOP ] || return
    cp "$folder/out.$victim" "$out" && cp "$folder/err.$victim" "$err"
    expect_code 1
    expect_err "rank $victim came too late to recover: the others went on without it"
}

# Within 2 s where a socket or the kernel tells, within EPX_TIMEOUT_MS and a second otherwise. Rank 0's process is the
# hub of comms: a group does not need it.
lose KILL 2 4 2000
lose KILL 0 3 2000
lose STOP 1 3 3000
export UCX_TLS=tcp
lose KILL 3 4 2000
lose KILL 0 3 2000
lose STOP 2 3 3000
unset UCX_TLS

last='processes left behind'
checks=$((checks + 1))
! pgrep -f "^$folder/survive" > /dev/null || wrong "$(pgrep -af "$folder/survive")"
finish
