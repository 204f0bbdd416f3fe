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

# lose SIGNAL VICTIM RANKS: the others say in time that VICTIM is gone, and go on without it. In time is within 2 s where
# the kernel or a connection tells (KILL), and within a second of EPX_TIMEOUT_MS where only silence does (STOP).
lose() {
    local victim=$2 ranks=$3 limit=2000 began r took most=0 victim_pid code left
    last="SIG$1 of rank $victim of $ranks over ${UCX_TLS:-shared memory}"
    [ "$1" = KILL ] || limit=$((EPX_TIMEOUT_MS + 1000))
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
        expect_out "^rank $r: at [0-9]+ ms: EPX_ERR_(PEER|TIMEOUT): .*rank $victim([^0-9]|\$)"
        expect_out "^rank $r: at [0-9]+ ms: recovered, rank [0-9]+ of $((ranks - 1)) now"
        expect_out "^rank $r: 50 steps among $((ranks - 1)) ranks were right"
        took=$(($(sed -n "s/^rank $r: at \([0-9]*\) ms: EPX_ERR.*/\1/p" "$out" | head -n 1) - began))
        checks=$((checks + 1))
        [ $took -lt $limit ] || wrong "rank $r said it after $took ms, not under $limit"
        [ $took -le $most ] || most=$took
    done
    echo "$last: all $((ranks - 1)) others said it within $most ms (limit $limit)"
    kill -CONT "$victim_pid" 2> /dev/null
    wait "${pid[victim]}" 2> /dev/null
    code=$?
    if [ "$1" = STOP ]; then
        cp "$folder/out.$victim" "$out" && cp "$folder/err.$victim" "$err"
        expect_code 1
        expect_err "rank $victim came too late to recover: the others went on without it"
    fi
    checks=$((checks + 1))
    left=$(pgrep -af "^$folder/survive")
    [ -z "$left" ] || wrong "processes left behind: $left"
}

# wake_up STOPPED GONE CODE: of four ranks some stand still for longer than a wait, while the others are lost, so that no word of
# what they decided can come. Those that stood still go on together where they are most of the ranks, and else came too late.
wake_up() {
    local r process=() left
    last="SIGSTOP of ranks $1 while $2 are lost over ${UCX_TLS:-shared memory}"
    start 4
    for r in 0 1 2 3; do process[r]=$(pgrep -P "${pid[r]}"); done
    for r in $1; do kill -STOP "${process[r]}"; done
    for r in $2; do kill -KILL "${process[r]}"; done
    sleep 2.5
    for r in $1; do kill -CONT "${process[r]}"; done
    for r in $1; do
        wait "${pid[r]}"
        code=$?
        cp "$folder/out.$r" "$out" && cp "$folder/err.$r" "$err"
        expect_code "$3"
        if [ "$3" = 0 ]; then
            expect_out "^rank $r: 50 steps among $(wc -w <<< "$1") ranks were right"
        else
            expect_no_out "^rank $r: .*recovered"
            expect_err "rank $r came too late to recover"
        fi
    done
    for r in $2; do wait "${pid[r]}" 2> /dev/null; done
    checks=$((checks + 1))
    left=$(pgrep -af "^$folder/survive")
    [ -z "$left" ] || wrong "processes left behind: $left"
}

# Rank 0's process is the hub of comms: a group does not need it.
all_losses() {
    wake_up '1 2' '0 3' 1
    wake_up '0 1 2' '3' 0
    lose KILL 2 4
    lose KILL 0 4
    lose STOP 1 4
    lose STOP 0 4
    lose KILL 0 16
    lose STOP 5 16
}

# Most of it is waiting: TCP beside shared memory.
(
    mkdir "$folder/tcp" && cp "$folder/survive" "$folder/tcp" && folder=$folder/tcp
    out=$folder/out err=$folder/err checks=0 bad=0
    export UCX_TLS=tcp
    all_losses
    echo "$checks $bad" > "$folder/counted"
) > "$folder/tcp.log" 2>&1 &
beside=$!
all_losses
wait $beside
cat "$folder/tcp.log"
read -r more failed < "$folder/tcp/counted" || wrong 'what went over TCP did not come to its end'
checks=$((checks + ${more:-0})) bad=$((bad + ${failed:-0}))
finish
