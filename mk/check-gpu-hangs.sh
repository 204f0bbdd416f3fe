#!/bin/bash
# Scenarios of epx-repro on the GPUs: ranks that share one (fabric local), and ranks with one each (fabric nccl). Three at
# a time, since each takes some seconds to begin. The last line is the sum.
#
#   TEST_BUILD=FOLDER [HANGS="one-short ..."] [HANG_SECONDS=60] [HANG_DEVICE=cuda] mk/check-gpu-hangs.sh GPUS
set -u
count=$1
seconds=${HANG_SECONDS:-60}
read -ra names <<< "${HANGS:-stuck-before-op one-short stale-epoch host-absent call-desync failed-route rank-killed}"
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
export EPX_HANG_MS=${EPX_HANG_MS:-1500} NCCL_NVLS_ENABLE=0

# play FABRIC RANKS NAME: what came of it stays in a file, since plays end in any order.
play() {
    timeout -k 5 "$seconds" "$TEST_BUILD/bin/epx-repro" --run "$3" --device "${HANG_DEVICE:-cuda}" --fabric "$1" --ranks "$2" --json \
        > "$logs/$1-$3.json" 2> "$logs/$1-$3.err"
    local code=$?
    if [ $code -eq 3 ]; then # it says that it cannot be played
        echo "left out: $3, fabric $1: $(sed -n 's/.*"text": "\(.*\)".*/\1/p' "$logs/$1-$3.json" | head -n 1)" > "$logs/$1-$3.end"
    elif [ $code -ne 0 ]; then
        echo "[FAIL] $3, fabric $1, $2 ranks: exit code $code: $(tr -d '\n' < "$logs/$1-$3.json" | tr -s ' ' | cut -c1-400)" > "$logs/$1-$3.end"
    else
        echo "ok $3, fabric $1, $2 ranks: $(sed -n 's/.*"verdict": "\([A-Z_]*\)".*/\1/p' "$logs/$1-$3.json" | head -n 1)" > "$logs/$1-$3.end"
    fi
}

for name in "${names[@]}"; do
    play local 4 "$name" &
    [ "$count" -lt 2 ] || play nccl 2 "$name" &
    while [ "$(jobs -rp | wc -l)" -ge 3 ]; do wait -n; done
done
wait
cat "$logs"/*.end
echo "$(cat "$logs"/*.end | grep -c '^ok ') passed, $(cat "$logs"/*.end | grep -c '^\[FAIL\]') failed"
! grep -q '^\[FAIL\]' "$logs"/*.end
