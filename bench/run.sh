#!/bin/bash
# Speed and memory of this machine, printed and held against the targets. Nothing fails for being slow: a busy machine
# is no bug. About a minute on two cores.
#
#   BIN=build/bin bench/run.sh
set -u -o pipefail
bin=${BIN:-build/bin}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0

# show TITLE COMMAND...: prints, and keeps a copy for the summary.
show() {
    echo "== $1"
    shift
    "$@" | tee "$log" || status=1
}

# The last column of the row that begins with $1, of the command shown last.
last_column() {
    awk -v name="$1" '$1 == name { value = $NF } END { print value }' "$log"
}

# Largest number in the second to last words of rows, in seconds, of the command shown last.
slowest_rule() {
    awk '$NF ~ /%$/ { for (i = 2; i < NF; i++) if ($i ~ /^[0-9.]+$/ && $(i + 1) == "s") { if ($i > worst) worst = $i; break } }
         END { print worst }' "$log"
}

show 'assignment wire' "$bin/epx-perf" --transport ragged --wire assignment --op all
share=$(last_column dispatch)
show 'rank wire, rows handed over by index' "$bin/epx-perf" --transport ragged --wire rank --batch indexed --op all -i 10
show 'the other transports' "$bin/epx-perf" --transport pooled_wave,ring --op all -i 10
show 'half of the assignments to four experts' "$bin/epx-perf" --skew hot:fraction=0.5,experts=4 --op dispatch,combine -i 10
show 'many ranks' "$bin/epx-perf" --transport all --ranks 16 --tokens 512 --op dispatch,combine -i 10
show 'latency' "$bin/epx-perf" --transport all --latency --tokens 8 --width 256 -i 200
show 'accept rules' "$bin/epx-perf" --accept-rules
slowest=$(slowest_rule)
show 'memory' "$bin/epx-info" -m
started=$(date +%s%N)
show 'the hero shape: 64 ranks x 65,536 tokens, drops counted, times predicted' "$bin/epx-sim" --seeds 1
hero=$(awk -v ns=$(($(date +%s%N) - started)) 'BEGIN { printf "%.2f", ns / 1e9 }')

echo
echo "dispatch over memcpy of the same rows, assignment wire: $share (target: at least 0.8)"
echo "slowest accept rule: $slowest s (target: at most 1.5 s)"
echo "epx-sim, hero shape, three transports: $hero s (target: at most 5 s)"
exit $status
