#!/bin/bash
# What processes cost: rows between two ranks on this host as threads (fabric local), as processes that share memory
# (fabric ucx) and as processes over TCP, in turns, and UCX's own ucx_perftest over TCP in the same rounds. The best of
# all rounds counts, since a busy machine takes and never gives. Targets: 0.7 of local, 0.8 of ucx_perftest.
#
# dispatch and combine pack, place and sum rows besides, of which half stay at their rank. fabric and fabric_one_way are
# the fabric alone, which is what ucx_perftest has an equal of: as many bytes, ready in memory, to the peer's memory.
# Processor time for each GB that crosses, of both ends, says more than rates do where others use the processors too.
#
# ucx_perftest sends one way only, while both ranks of an exchange send and receive at once, on the same two processors.
# So there are two of it at once, one each way, on each of two processors one that sends and one that receives, for a
# second or so: shorter ones pass each other by, and their sum says nothing. These four poll against each other, though,
# so what one way alone reaches, on both processors too, is taken as well, and the greater of the two is the floor.
#
#   BIN=build/bin ROUNDS=5 bench/processes.sh
set -u
bin=$(cd "${BIN:-build/bin}" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export UCX_HANDLE_ERRORS=none UCX_LOG_LEVEL=error
[ -n "${UCX_NET_DEVICES:-}" ] || net=lo
tokens=${TOKENS:-4096} width=1024 message=64512 messages=40000
TIMEFORMAT='%U %S'
perf=("$bin/epx-perf" --ranks 2 --wire assignment --no-check -i 6 --warmup 2 --tokens "$tokens" --width $width --top-k 4
    --op 'dispatch,combine,fabric,fabric_one_way' --transport 'ragged,pooled_wave' --json)

port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# processes OUTPUT
processes() {
    local root other
    root=127.0.0.1:$(port)
    EPX_RANK=1 EPX_WORLD_SIZE=2 EPX_ROOT=$root "${perf[@]}" --fabric ucx > /dev/null &
    other=$!
    EPX_RANK=0 EPX_WORLD_SIZE=2 EPX_ROOT=$root "${perf[@]}" --fabric ucx > "$1"
    wait $other
}

# UCX's own rate for messages of the size that pieces travel in. serve PORT CPU, send PORT CPU: prints bytes/s.
tls() { UCX_TLS=tcp UCX_NET_DEVICES=${net:-$UCX_NET_DEVICES} "$@"; }
serve() { tls taskset -c "$2" ucx_perftest -t ucp_am_bw -s $message -n $messages -w 200 -p "$1" > /dev/null 2>&1; }
send() {
    tls taskset -c "$2" ucx_perftest 127.0.0.1 -t ucp_am_bw -s $message -n $messages -w 200 -p "$1" 2> /dev/null |
        awk '$1 == "Final:" { print $7 * 1048576 }'
}
read -r one two _ < <(python3 -c 'import os; print(*sorted(os.sched_getaffinity(0)))')
two=${two:-$one}
perftest() {
    local there back
    there=$(port) back=$(port)
    { time {
        serve "$there" "$one" &
        sleep 0.5
        send "$there" "$two" >> "$folder/perftest"
        wait
    }; } 2>> "$folder/busy"
    serve "$there" "$one" &
    serve "$back" "$two" &
    sleep 0.5
    { send "$there" "$two" & send "$back" "$one"; wait; } | awk '{ all += $1; n++ } n == 2 { print all }' >> "$folder/both"
    wait
}

for ((round = 0; round < ${ROUNDS:-5}; round++)); do
    "${perf[@]}" --fabric local > "$folder/local.$round" || exit
    processes "$folder/shared.$round"
    UCX_TLS=tcp UCX_NET_DEVICES=${net:-$UCX_NET_DEVICES} processes "$folder/tcp.$round"
    ! command -v ucx_perftest > /dev/null || perftest
done
python3 - "$folder" $((message * messages)) <<'END'
import glob, json, os, sys

folder, sent = sys.argv[1], int(sys.argv[2])
best, busy = {}, {}
for path in glob.glob(folder + "/*.*"):
    kind = os.path.basename(path).split(".")[0]
    for case in json.load(open(path))["cases"]:
        for op in case["operations"]:
            if op["op"] != "memcpy":
                key = ("alone" if op["op"].startswith("fabric") else case["transport"], op["op"], kind)
                rate = op["payload_bytes"] / op["seconds"]["min"] / 1e9, op["remote_bytes"] / op["seconds"]["min"] / 1e9
                best[key] = max(best.get(key, (0, 0)), rate)
                cost = op["processor_seconds"] / op["remote_bytes"] * 1e9
                busy[key] = min(busy.get(key, cost), cost)
def lines(name):
    try:
        return [[float(word) for word in line.split()] for line in open(folder + "/" + name)]
    except (OSError, ValueError):
        return []
def best_of(name):
    return max((line[0] / 1e9 for line in lines(name)), default=0)
one, both = best_of("perftest"), best_of("both")
own = max(one, both)
print("two ranks, best of all rounds; payload GB/s (TCP: bytes that cross, GB/s, and processor time of both ends)")
print("%-12s %-15s %8s %8s %14s %8s %9s %s" % (
    "transport", "call", "local", "shared", "of local", "TCP", "TCP s/GB", "of ucx_perftest (0.8)"))
for transport, op in sorted({key[:2] for key in best}, key=lambda key: (key[0] == "alone", key)):
    local, shared, tcp = (best[transport, op, kind] for kind in ("local", "shared", "tcp"))
    floor = one if op == "fabric_one_way" else own
    print("%-12s %-15s %8.2f %8.2f %8.2f (0.7) %8.2f %9.2f %s" % (
        transport, op, local[0], shared[0], shared[0] / local[0], tcp[1], busy[transport, op, "tcp"],
        "%.2f" % (tcp[1] / floor) if floor else "-"))
print("ucx_perftest -t ucp_am_bw over TCP: %s" % (
    "%.2f GB/s both ways at once, %.2f GB/s one way alone, %.2f s/GB" % (
        both, one, min(sum(times) for times in lines("busy")) / sent * 1e9)
    if own else "it is not here (package ucx-utils)"))
END
