#!/bin/bash
# epx-perf: every operation, pattern and transport once, small, with its own bit-exact check; and what it reports.
# shellcheck source=tests/support/shell.sh
. tests/support/shell.sh

run epx-perf --help && expect_code 0 && expect_out 'zipf:s=1' && expect_quiet
run epx-perf --op throw; expect_code 2
expect_err '^epx-perf: --op: .throw. is no list of operations'
run epx-perf --skew hot:fraction=2; expect_code 2
expect_err 'fraction=2 is no share'
run epx-perf --sizes 10:1:2; expect_code 2
run epx-perf --top-k 9 --experts 8; expect_code 2
expect_err '--top-k 9 is more than --experts 8'
EPX_TRANSPORT=ring run epx-perf --transport ragged; expect_code 2
expect_err 'EPX_TRANSPORT=ring is set and wins'
# A transport that does not exist is bad usage, by option or variable.
run epx-perf --transport nonsense --tokens 8 -i 1; expect_code 2; expect_err '^epx-perf: .*nonsense .*is not one of'
EPX_TRANSPORT=nonsense run epx-perf --tokens 8 -i 1; expect_code 2; expect_err '^epx-perf: .*nonsense .*is not one of'
EPX_STATS=/no/such/folder run epx-perf --tokens 8 -i 1; expect_code 2; expect_err '^epx-perf: .*EPX_STATS=/no/such/folder: '
EPX_STATS=/no/such/folder run epx-perf --recorder -i 1; expect_code 2; expect_err '^epx-perf: EPX_STATS=/no/such/folder: '
# Memory that cannot be is known before anything is taken; the ranks' own tables grow with their number.
for many in '--ranks 16 --tokens 2M --width 8K' '--ranks 60000 --tokens 16 --width 32'; do
    # shellcheck disable=SC2086  # words
    run epx-perf $many; expect_code 1
    expect_err '^epx-perf: [0-9]+ ranks in this process take at least [0-9.]+ GB, and this (machine|control group) has [0-9.]+ GB left: choose fewer'
done

small=(--tokens 48 --width 40 --experts 12 --top-k 3 -i 2 --warmup 1)
run epx-perf --transport all --op all "${small[@]}" --json && expect_code 0 && expect_quiet && expect_json
json '[c["transport"] for c in d["cases"]] == ["pooled_wave", "ragged", "ring"] and all(c["checked"] for c in d["cases"])'
json 'all([o["op"] for o in c["operations"]] == ["memcpy", "route", "dispatch", "combine", "combine_backward",
      "dispatch_backward"] for c in d["cases"])'
json 'all(c["routed"] == 2 * 48 * 3 for c in d["cases"])'
json 'all(c["routed"] == c["kept"] + c["dropped_sender"] + c["dropped_receiver"] for c in d["cases"])'
json 'all(o["payload_bytes"] == c["kept"] * 80 for c in d["cases"] for o in c["operations"] if "payload_bytes" in o)'
json 'all(0 < o["seconds"]["min"] <= o["seconds"]["median"] <= o["seconds"]["max"] for c in d["cases"]
      for o in c["operations"])'
json 'all(o["share_of_memcpy"] > 0 for c in d["cases"] for o in c["operations"] if "payload_bytes" in o)'

# Remote bytes of the assignment wire are the rows that change ranks, as the program counts them itself.
run epx-perf --transport ragged --wire assignment "${small[@]}" --json && expect_code 0
json '[o["remote_bytes"] for o in d["cases"][0]["operations"] if o["op"] == "dispatch"] ==
      [o["remote_bytes"] for o in d["cases"][0]["operations"] if o["op"] == "memcpy"]'
# Rows that never leave their rank are payload, and nothing of them is remote.
run epx-perf --transport ragged --skew self "${small[@]}" --capacity-factor dropless --json && expect_code 0
json '[(o["remote_bytes"], o["payload_bytes"]) for o in d["cases"][0]["operations"] if o["op"] == "dispatch"] ==
      [(0, 2 * 48 * 3 * 80)]'
run epx-perf --transport ragged --wire assignment --skew peer "${small[@]}" --capacity-factor dropless --json
json '[o["remote_bytes"] for o in d["cases"][0]["operations"] if o["op"] == "dispatch"] == [2 * 48 * 3 * 80]'

for skew in uniform zipf:s=1.2 hot:fraction=0.5,experts=2 one-expert self peer empty-rank; do
    run epx-perf --transport all --op all --skew "$skew" "${small[@]}" --ranks 3 --json
    expect_code 0
    expect_quiet
    json 'len(d["cases"]) == 3'
done
# All to one expert overflows; without capacity nothing is lost.
run epx-perf --transport ragged --skew one-expert "${small[@]}" --json
json 'd["cases"][0]["dropped_sender"] > 0'
run epx-perf --transport all --skew one-expert --capacity-factor dropless "${small[@]}" --json && expect_code 0
json 'all(c["kept"] == c["routed"] == 2 * 48 * 3 for c in d["cases"])'

for extra in '--wire rank' '--wire rank --batch indexed' '--wire assignment' '--accept waterfill' '--accept fair' '--waves 1'; do
    # shellcheck disable=SC2086  # words
    run epx-perf --transport ragged --op all --skew zipf:s=1 "${small[@]}" --ranks 4 $extra
    expect_code 0
    expect_out 'every row and sum was right'
done
run epx-perf --transport pooled_wave --overflow extra_wave --skew zipf:s=1 "${small[@]}" --json && expect_code 0
json 'd["cases"][0]["kept"] == d["cases"][0]["routed"]'
for type in fp32 bf16 fp16; do
    run epx-perf --transport all --op all --row-type $type --width 5 --tokens 9 --experts 5 --top-k 2 --ranks 3 -i 1
    expect_code 0
done
run epx-perf --transport all --op all --ranks 16 "${small[@]}" -i 1 && expect_code 0
run epx-perf --transport ragged,pooled_wave --waves 2 --op route,whole_dispatch,combine_start --ranks 3 "${small[@]}" --json
expect_code 0
json 'all([o["op"] for o in c["operations"]] == ["memcpy", "route", "whole_dispatch", "combine_start"] for c in d["cases"])'
json 'all(o["seconds"]["median"] > 0 for c in d["cases"] for o in c["operations"])'
run epx-perf --transport ragged --waves 4 --op whole_dispatch "${small[@]}"; expect_code 2; expect_err 'give --waves 2'
# The fabric alone carries what the busiest rank sends in a dispatch: here both send alike. One way of three: one sends.
run epx-perf --transport ragged --wire assignment --skew peer --capacity-factor dropless --op dispatch,fabric,fabric_one_way \
    "${small[@]}" --json && expect_code 0 && expect_quiet
json '[(o["op"], o["remote_bytes"]) for o in d["cases"][0]["operations"][1:]] ==
      [("dispatch", 23040), ("fabric", 23040), ("fabric_one_way", 11520)]'
run epx-perf --transport pooled_wave --op fabric,fabric_one_way --ranks 3 "${small[@]}" --json && expect_code 0
json '(lambda a, b: a["remote_bytes"] == 3 * b["remote_bytes"] == a["payload_bytes"] > 0 < b["seconds"]["min"])(
      *d["cases"][0]["operations"][1:])'
run epx-perf --op fabric --ranks 1 "${small[@]}"; expect_code 2; expect_err 'nobody to send to'
EPX_CHECK=canary run epx-perf --transport all --op all "${small[@]}" && expect_code 0
run epx-perf --transport ragged --sizes 0:4:2 "${small[@]}" --json && expect_code 0 && expect_json
json '[c["tokens"] for c in d["cases"]] == [0, 1, 2, 4]'
run epx-perf --transport all --latency "${small[@]}" --json && expect_code 0 && expect_json
json 'd["mode"] == "latency" and all("p99" in o["seconds"] for c in d["cases"] for o in c["operations"])'
run epx-perf --cold --no-check "${small[@]}" && expect_code 0 && expect_out 'not checked'
# What only a GPU has is refused or left out with its reason.
run epx-perf --sm-budget 8,many; expect_code 2; expect_err '8,many.* is no list of budgets'
run epx-perf --graph "${small[@]}"; expect_code 2; expect_err 'use --fabric nccl'
run epx-perf --beside "${small[@]}" && expect_code 0 && expect_out 'beside a matrix product: left out'
# A shape that cannot be is an error with its reason, and the other transports are measured all the same.
EPX_POOLED_WAVE_ACCEPT=fair run epx-perf --transport all "${small[@]}" --json; expect_code 1
expect_json
expect_err '^epx-perf: .*EPX_ACCEPT'
json '[c["transport"] for c in d["cases"]] == ["ragged", "ring"]'

# ---- a process for each rank -------------------------------------------------------------------------------------

# Rank 0 prints, the others are silent; every row is checked across processes, so a turned bit is found by name.
processes() { # N ARGUMENT...
    local n=$1 r number ranks=() codes=
    shift
    number=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    last="$n processes: epx-perf $*"
    for ((r = 0; r < n; r++)); do
        EPX_RANK=$r EPX_WORLD_SIZE=$n EPX_ROOT=127.0.0.1:$number timeout 120 "$bin/epx-perf" "$@" \
            > "$out.$r" 2> "$err.$r" &
        ranks+=($!)
    done
    code=0
    for r in "${!ranks[@]}"; do
        wait "${ranks[r]}" || code=$?
        codes="$codes $r:$(wc -c < "$out.$r")"
    done
    cat "$out".[0-9]* > "$out"
    cat "$err".[0-9]* > "$err"
    checks=$((checks + 1))
    [ "$(cat "$out".[1-9]* | wc -c)" = 0 ] || wrong "ranks beside 0 print: $codes"
    rm -f "$out".[0-9]* "$err".[0-9]*
}
if "$bin/epx-info" -b | grep -Eq '^ucx +yes'; then
    export UCX_HANDLE_ERRORS=none UCX_LOG_LEVEL=fatal
    processes 3 --transport all --op all "${small[@]}" --json && expect_code 0 && expect_quiet && expect_json
    json 'd["ranks"] == 3 and d["ranks_are"] == "processes" and len(d["cases"]) == 3'
    json 'all(c["checked"] and c["fabric"] == "ucx" and c["routed"] == 3 * 48 * 3 for c in d["cases"])'
    json 'all(c["routed"] == c["kept"] + c["dropped_sender"] + c["dropped_receiver"] for c in d["cases"])'
    json 'all(0 < o["seconds"]["min"] <= o["seconds"]["median"] < 100 for c in d["cases"] for o in c["operations"])'
    processes 2 --transport ragged --wire assignment "${small[@]}" --json && expect_code 0
    json '[o["remote_bytes"] for o in d["cases"][0]["operations"] if o["op"] == "dispatch"] ==
          [o["remote_bytes"] for o in d["cases"][0]["operations"] if o["op"] == "memcpy"]'
    for tls in tcp all; do
        UCX_TLS=$tls processes 3 --transport ragged --op combine,fabric,fabric_one_way "${small[@]}" --json && expect_code 0
        json 'all(o["processor_seconds"] > 0 < o["seconds"]["min"] for o in d["cases"][0]["operations"]) and d["cases"][0]["checked"]'
    done
    processes 3 --transport all --skew empty-rank --latency "${small[@]}" && expect_code 0
    EPX_FAULT='rank=1 op=dispatch at=put.post do=flip:3' processes 2 --transport ragged "${small[@]}"
    expect_code 1
    expect_err 'dispatch: wave .* differs from what was sent|which did not ask for this expert|does not say whose it is'
    processes 2 --calibrate "$out.machine"; expect_code 2; expect_err 'start it without the launcher'
    if command -v mpirun > /dev/null; then
        last='mpirun -n 2 epx-perf'
        OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 120 mpirun --oversubscribe -n 2 \
            "$bin/epx-perf" --transport ragged "${small[@]}" > "$out" 2> "$err"
        code=$?
        expect_code 0
        expect_out '2 ranks as processes'
        expect_out 'every row and sum was right'
    fi
fi

# The accept rules alone; sanitizers would need minutes for their 33.5 million assignments.
run epx-perf --accept-rules --skew empty-rank; expect_code 2
if [ -z "${SANITIZE:-}" ]; then
    run epx-perf --accept-rules --skew zipf:s=0.3 --json && expect_code 0 && expect_json
    json 'len(d["rules"]) == 6 and all(r["kept"] + r["dropped"] == 64 * 524288 for r in d["rules"])'
    json '{r["rule"]: r["dropped"] for r in d["rules"]}["pooled_wave extra_wave"] == 0'
    json 'all(r["dropped"] > 0 for r in d["rules"] if "extra_wave" not in r["rule"])'
    # waterfill and fair share a quota per expert, so they drop as many, only not of the same senders.
    json 'len({r["dropped"] for r in d["rules"] if r["rule"] in ("ragged waterfill", "ragged fair")}) == 1'
fi
finish
