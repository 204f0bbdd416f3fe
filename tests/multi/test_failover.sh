#!/bin/bash
# EPX_ON_HANG=failover: a run that loses a signal of ragged in the middle of a step goes on with pooled_wave, and from that
# step on its losses are those of a run that goes from the same parameters with pooled_wave. A second loss, in the
# evaluation, is survived as well. Other verdicts end the run with their exit code. All pairs of transports, on threads and
# on processes:  tests/multi/failover.py build/bin/epx-train --all
# shellcheck source=tests/support/shell.sh
. tests/support/shell.sh

folder=$(mktemp -d)
trap 'rm -rf "$folder" "$out" "$err"' EXIT
small=(--layers 2 --width 32 --heads 4 --head-width 8 --sequence 32 --experts 8 --top-k 2 --expert-width 16
    --latent 16 --shared-width 16 --batch 2 --warmup 2 --peak-flops 1e11 --ranks 4 --steps 12)
# Two layers with two chunks: a route and eight calls for each, eighteen in a step. The eighth step begins with 127.
first=128 next_step=145
# With pooled_wave's three waves a step has 26; five of them go before the evaluation's route and dispatch.
evaluation=$((first + 1 + 5 * 26 + 2)) # rank 3 stood in the combine behind

# losses FROM: "step loss transport" of the steps from FROM on, as the metrics have them.
losses() {
    sed -n 's/.*"step": \([0-9]*\), "loss": \([^,]*\),.*"transport": "\([a-z_]*\)".*/\1 \2 \3/p' "$1" | awk -v from="$2" '$1 >= from'
}

# same WHAT FILE FILE: nothing is proved by two empty files.
same() {
    checks=$((checks + 1))
    [ -s "$2" ] && cmp -s "$2" "$3" || wrong "$1: $(diff "$2" "$3" | head -n 6)"
}

export EPX_HANG_MS=2000
EPX_RECORD=$folder/lost EPX_TRANSPORT=ragged EPX_ON_HANG=failover:pooled_wave \
    EPX_ON_HANG_CMD="echo once >> $folder/commands; test -e" \
    EPX_FAULT="rank=2 op=dispatch seq=$first peer=1 at=signal.pre do=drop; rank=3 op=dispatch seq=$evaluation peer=0 at=signal.pre do=drop" \
    run epx-train "${small[@]}" --metrics "$folder/failover"
expect_code 0
expect_err '^epx: job .* is stuck: SIGNAL_LOST\(2 -> 1\)$'
expect_err '^epx-train: step 7: SIGNAL_LOST of rank 2, dispatch wave 0; the group goes on with transport pooled_wave and the step '
expect_err '^epx: job .* is stuck: SIGNAL_LOST\(3 -> 0\)$'
expect_err '^epx-train: step 12: SIGNAL_LOST of rank 3, dispatch wave 0; the group goes on with transport pooled_wave and the evaluation '
checks=$((checks + 1))
[ "$(xargs < "$folder/commands")" = 'once once' ] || wrong 'EPX_ON_HANG_CMD was not run once for each'
losses "$folder/failover" 0 > "$folder/all"
checks=$((checks + 1))
[ "$(awk '{ print $3 }' "$folder/all" | uniq -c | xargs)" = '7 ragged 5 pooled_wave' ] || wrong "the transports are not 7 x ragged, 5 x pooled_wave"

# The same parameters after seven steps: the run is ended in the eighth, its checkpoint stays.
EPX_RECORD=off EPX_TRANSPORT=ragged EPX_FAULT="rank=0 seq=$next_step at=enqueue do=exit" \
    run epx-train "${small[@]}" --checkpoint "$folder/seven" --save-every 7
[ -s "$folder/seven" ] || wrong 'no checkpoint after seven steps'
EPX_RECORD=off EPX_TRANSPORT=pooled_wave run epx-train "${small[@]}" --restore "$folder/seven" --metrics "$folder/undisturbed"
expect_code 0
losses "$folder/failover" 7 > "$folder/a"
losses "$folder/undisturbed" 7 > "$folder/b"
same 'losses after the fail-over' "$folder/a" "$folder/b"
grep -o '"validation_loss": [0-9.]*' "$folder/failover" > "$folder/a"
grep -o '"validation_loss": [0-9.]*' "$folder/undisturbed" > "$folder/b"
same 'loss of the evaluation' "$folder/a" "$folder/b"

# Two groups of two ranks, every rank a process: the stall is in a step's way back, and the group that has none recovers too.
if [ -z "${SANITIZE:-}" ] && "$bin/epx-info" -f | grep -Eq '^[* ]*ucx +[0-9]'; then
    last='tests/multi/failover.py'
    timeout 120 python3 tests/multi/failover.py "$bin/epx-train" --processes --from ring --to ragged --where backward --step 2 \
        > "$out" 2> "$err"
    code=$?
    expect_code 0
    expect_out '^1 of 1 '
fi

# A word that goes back is mended in the same way.
EPX_RECORD=$folder/stale EPX_TRANSPORT=ragged EPX_ON_HANG=failover:pooled_wave EPX_HANG_MS=1000 \
    EPX_FAULT="rank=2 op=dispatch seq=$first peer=1 at=signal.pre do=stale" run epx-train "${small[@]}"
expect_code 0
expect_err '^epx: job .* is stuck: EPOCH_SKEW\(rank 2\)$'
expect_err '^epx-train: step 7: EPOCH_SKEW of rank 2, dispatch wave 0; the group goes on with transport pooled_wave and the step '

# A rank that is busy elsewhere is no transport's fault: the run leaves with what the verdict says.
EPX_RECORD=$folder/stuck EPX_TRANSPORT=ragged EPX_ON_HANG=failover:pooled_wave EPX_HANG_MS=1000 \
    EPX_FAULT="rank=2 op=dispatch seq=$first at=begin do=spin:9000" run epx-train "${small[@]}"
expect_code 75
expect_err '^epx: job .* is stuck: STUCK_BEFORE_OP\(rank 2\)$'

finish
