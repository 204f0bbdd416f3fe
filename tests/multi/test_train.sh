#!/bin/bash
# epx-train from outside: options, exit codes, JSON lines, signals, checkpoints.
# shellcheck source=tests/support/shell.sh
. tests/support/shell.sh

folder=$(mktemp -d)
trap 'rm -rf "$folder" "$out" "$err"' EXIT
small=(--layers 2 --width 32 --heads 4 --head-width 8 --sequence 32 --experts 8 --top-k 2 --expert-width 16
    --latent 16 --shared-width 16 --batch 2 --warmup 2 --peak-flops 1e11)
keys='step loss tokens step_ms tokens_per_s mfu mfu_executed mfu_causal drop_fraction sender_drop_fraction
receiver_drop_fraction grad_norm gate_norm router_norm peak_bytes host_rss_bytes transport fabric wait_ms_max
wait_peer load_max_over_mean'

# lines EXPRESSION: a Python expression over the list d of the JSON lines in stdout must be true.
lines() {
    checks=$((checks + 1))
    command -v python3 > /dev/null || return 0
    python3 -c 'import json, sys; d = [json.loads(l) for l in sys.stdin]; sys.exit(not eval("(" + sys.argv[1] + ")"))' "$1" \
        < "$out" 2>> "$err" || wrong "not true of the JSON lines: $1"
}

# field NUMBER_OF_LINE NAME: a field of a JSON line.
losses() { sed -n 's/.*"loss": \([^,]*\),.*/\1/p' "$out"; }

run epx-train --help && expect_code 0 && expect_out '--virtual-ep' && expect_out 'tiny, d512' && expect_quiet
run epx-train --version && expect_code 0 && expect_out '^epx-train [0-9]+\.[0-9]+'
run epx-train --no-such-option; expect_code 2; expect_err '^epx-train: .*--no-such-option.*: see --help$'
run epx-train "${small[@]}" --ranks 4 --ep 3; expect_code 2; expect_err '^epx-train: --ranks 4 is not --ep 3 times --replicas 1: make'
run epx-train "${small[@]}" --ep 2 --ranks 4 --replicas 3; expect_code 2; expect_err '--ranks 4 is not --ep 2 times --replicas 3'
run epx-train "${small[@]}" --ranks 4 --replicas 2; expect_code 2; expect_err '--ranks 4 is not --ep 1 times --replicas 2'
run epx-train "${small[@]}" --replicas 2 --ranks 4 --ep 2 --steps 1; expect_code 0; expect_out ', 4 ranks \(2 groups of 2\),'
run epx-train "${small[@]}" --ranks 1 --steps 1; expect_code 0; expect_out ', 1 rank \(1 group of 1\),'
run epx-train --ranks 3 --virtual-ep 4; expect_code 2; expect_err '^epx-train: --virtual-ep 4'
run epx-train --data "$folder/none"; expect_code 2; expect_err "^epx-train: cannot read the text $folder/none"
run epx-train --restore "$folder/none" "${small[@]}"; expect_code 2; expect_err '^epx-train: cannot read the checkpoint'
run epx-train --restore "$folder" "${small[@]}"; expect_code 2; expect_err "^epx-train: $folder is no plain file: restore another"
run epx-train --routing "$folder" "${small[@]}"; expect_code 2; expect_err "^epx-train: $folder is no plain file: record it again"
run epx-train --routing "$0" "${small[@]}"; expect_code 2; expect_err 'is no routing of epx'
# An unknown transport or a bad value of a variable is bad usage, whoever says it; a wrong combination is not.
EPX_TRANSPORT=nonsense run epx-train "${small[@]}" --steps 1; expect_code 2; expect_err '^epx-train: .*nonsense.*ragged'
run epx-train "${small[@]}" --transport nonsense --steps 1; expect_code 2; expect_err '^epx-train: .*nonsense.*ragged'
EPX_WAVES=abc run epx-train "${small[@]}" --steps 1; expect_code 2; expect_err '^epx-train: EPX_WAVES=abc'
EPX_PIN=abc run epx-train "${small[@]}" --steps 1; expect_code 2; expect_err '^epx-train: EPX_PIN=abc'
EPX_RECORD='' run epx-train "${small[@]}" --steps 1; expect_code 2; expect_err '^epx-train: EPX_RECORD= '
# A folder for lines that cannot be is found out before the first step; /proc takes folders' names and no files.
for place in "$folder/no/folder" "$0"; do
    EPX_STATS=$place run epx-train "${small[@]}" --steps 100000000; expect_code 2; expect_err "^epx-train: EPX_STATS=$place: "; expect_no_out .
done
EPX_STATS=/proc run epx-train "${small[@]}" --steps 3; expect_code 2; expect_err '^epx-train: EPX_STATS=/proc: .*cannot be written'

# Memory that cannot be is known before anything is taken, and nothing is written.
for many in '--ranks 100000' '--preset hero' '--batch 100000000'; do
    # shellcheck disable=SC2086  # words
    run epx-train $many --metrics "$folder/none"; expect_code 1; expect_no_out .
    expect_err '^epx-train: [0-9]+ ranks? in this process takes? at least [0-9.]+ [GT]B .*, and this (machine|control group) has [0-9.]+ GB left: run fewer'
done
[ ! -e "$folder/none" ]; code=$?; expect_code 0
run epx-train --ep 4294967296 --replicas 4294967296; expect_code 2; expect_err 'is beyond 2147483647 ranks: run fewer$'

# Where a file cannot be written is said before the first step, and nothing is left there.
for option in checkpoint record-routing metrics; do
    for place in "$folder/no/file" /proc/file "$folder" ''; do
        run epx-train "${small[@]}" --steps 100000000 --$option "$place"
        expect_code 2; expect_err "^epx-train: .* $place.*: (check folder and rights, or )?give another (path|file)$"; expect_no_out .
    done
done
rmdir "$folder"; code=$?; expect_code 0; mkdir "$folder"

run epx-train "${small[@]}" --ranks 3 --steps 5 --json
expect_code 0
lines "len(d) == 5 and [m['step'] for m in d] == list(range(5))"
lines "all(list(m)[:21] == '''$keys'''.split() for m in d)"
lines "all(len(m) == 21 for m in d[:-1]) and d[-1]['bigram_loss'] > 1 and d[-1]['validation_loss'] > 1"
lines "all(m['tokens'] == 3 * 2 * 32 and 0 < m['mfu_executed'] <= m['mfu'] and m['peak_bytes'] > 0 for m in d)"
losses > "$folder/first"
run epx-train "${small[@]}" --ranks 3 --steps 5 --json --metrics "$folder/metrics"
losses | cmp -s - "$folder/first"; code=$?; expect_code 0 # the same again, bit by bit
cut -d, -f1,2 "$folder/metrics" > "$folder/a"; cut -d, -f1,2 "$out" | cmp -s - "$folder/a"; code=$?; expect_code 0

# A checkpoint in the middle, restored over other ranks: text goes on where it stopped.
run epx-train "${small[@]}" --ranks 2 --steps 6 --save-every 3 --checkpoint "$folder/checkpoint"
expect_code 0; expect_out "^checkpoint $folder/checkpoint: after 3 steps, hash [0-9a-f]{16}$"
expect_out "^checkpoint $folder/checkpoint: after 6 steps"; expect_out 'validation loss [0-9.]+  \(bigram model: [0-9.]+\)'
run epx-train "${small[@]}" --ep 1 --replicas 4 --steps 7 --restore "$folder/checkpoint" --json
expect_code 0; lines "len(d) == 1 and d[0]['step'] == 6"; expect_err '^restored .*: 6 steps done, hash'
head -c 5000 "$folder/checkpoint" > "$folder/cut"
run epx-train "${small[@]}" --restore "$folder/cut"; expect_code 2; expect_err 'cut'
run epx-train "${small[@]}" --restore "$0"; expect_code 2; expect_err 'is no checkpoint of epx-train'
mkfifo "$folder/pipe" # what is no plain file stays what it is
run epx-train "${small[@]}" --steps 1 --checkpoint "$folder/pipe"; expect_code 2; expect_no_out .; expect_err 'no plain file'
[ -p "$folder/pipe" ]; code=$?; expect_code 0
last='epx-train --json > /dev/full' # lines that are lost are a failure
"$bin/epx-train" "${small[@]}" --steps 1 --json > /dev/full 2> "$err"; code=$?
expect_code 1; expect_err 'cannot write all of standard output'
for option in --help --version; do
    last="epx-train $option > /dev/full"
    "$bin/epx-train" "$option" > /dev/full 2> "$err"; code=$?
    expect_code 1; expect_err 'cannot write the output'
done

# Signals: SIGUSR1 writes and goes on, SIGTERM writes and stops with 0.
rm -f "$folder/checkpoint"
"$bin/epx-train" "${small[@]}" --ranks 2 --steps 1000000 --checkpoint "$folder/checkpoint" > "$out" 2> "$err" &
program=$!
last='epx-train with signals'
sleep 1
kill -USR1 $program
for _ in $(seq 100); do [ -s "$folder/checkpoint" ] && break; sleep 0.1; done
[ -s "$folder/checkpoint" ]; code=$?; expect_code 0
kill -0 $program; code=$?; expect_code 0
kill -TERM $program
wait $program; code=$?; expect_code 0
expect_err 'by a signal after [0-9]+ steps: checkpoint written, going on'
expect_err 'by a signal after [0-9]+ steps: checkpoint written, stopped'
run epx-train "${small[@]}" --ranks 2 --steps 1 --restore "$folder/checkpoint"; expect_code 0

# A checkpoint that cannot be written in the middle costs the exit code, not the training.
"$bin/epx-train" "${small[@]}" --ranks 2 --steps 1000000 --checkpoint "$folder/checkpoint" > "$out" 2> "$err" &
program=$!
last='epx-train with a signal and no folder'
for _ in $(seq 100); do grep -q '^step' "$out" && break; sleep 0.1; done
mkdir "$folder/checkpoint.partial" # in the way
kill -USR1 $program
for _ in $(seq 100); do grep -q 'going on$' "$err" && break; sleep 0.1; done
kill -0 $program; code=$?; expect_code 0
rmdir "$folder/checkpoint.partial"
kill -TERM $program
wait $program; code=$?; expect_code 1
expect_err '^epx-train: warning: cannot create the checkpoint .*: check folder, space and rights; training goes on$'
expect_err 'by a signal after [0-9]+ steps: checkpoint not written, going on$'
expect_err 'by a signal after [0-9]+ steps: checkpoint written, stopped$'
expect_err '^epx-train: 1 checkpoint could not be written: see the warning, and check'

# A loss that is no number any more: its step is reported, then training stops and saves nothing.
run epx-train "${small[@]}" --ranks 2 --steps 50 --lr 1e30 --clip 0 --warmup 0 --json --metrics "$folder/metrics" --checkpoint "$folder/nan"
expect_code 1; lines "1 <= len(d) < 50 and (d[-1]['loss'] is None or d[-1]['grad_norm'] is None)"
lines "all(m['loss'] is not None and m['grad_norm'] is not None for m in d[:-1])"
expect_err "^epx-train: the (loss|gradient's norm) of step $(($(wc -l < "$out") - 1)) is (not a number|infinite), .*: try a smaller --lr"
cmp -s "$out" "$folder/metrics"; code=$?; expect_code 0
[ ! -e "$folder/nan" ]; code=$?; expect_code 0
# The last step has nothing behind it that would notice, but the validation.
run epx-train "${small[@]}" --ranks 2 --steps 1 --lr 1e30 --clip 0 --warmup 0 --json --no-bigram --checkpoint "$folder/nan"
expect_code 1; lines "len(d) == 1 and d[0]['loss'] is not None and d[0]['validation_loss'] is None"
expect_err '^epx-train: the validation loss of step 0 is (not a number|infinite), .*: try a smaller --lr'
[ ! -e "$folder/nan" ]; code=$?; expect_code 0

# One that there is no room for is told, and nothing of it stays.
last='epx-train --record-routing, with a limit on the size of files'
(trap '' XFSZ; ulimit -f 4; EPX_RECORD=off exec timeout 60 "$bin/epx-train" "${small[@]}" --ranks 2 --steps 40 --no-bigram \
    --record-routing "$folder/large" > "$out" 2> "$err"); code=$?
expect_code 1; expect_err 'cannot write the routing .*large .File too large.: check folder and space'
[ ! -e "$folder/large" ] && [ ! -e "$folder/large.partial" ]; code=$?; expect_code 0

# Recorded routing and its replay.
run epx-train "${small[@]}" --ranks 2 --steps 4 --balance none --record-routing "$folder/routing" --record-steps 0:4 --json
expect_code 0; losses > "$folder/first"
run epx-train "${small[@]}" --ranks 2 --steps 4 --balance none --routing "$folder/routing" --json
expect_code 0; losses | cmp -s - "$folder/first"; code=$?; expect_code 0
cp "$folder/routing" "$folder/before" # a run that recorded nothing leaves what was there
run epx-train "${small[@]}" --ranks 2 --restore "$0" --record-routing "$folder/routing"; expect_code 2
cmp -s "$folder/routing" "$folder/before"; code=$?; expect_code 0
head -c 300 "$folder/routing" > "$folder/cut"
run epx-train "${small[@]}" --ranks 2 --steps 1 --routing "$folder/cut"; expect_code 2; expect_err 'is cut short'
printf 'epx-routing-text 1 ranks=2 experts=8 top_k=2\n0 1 2\n0 1 3\n1 1 -1\n' > "$folder/text"
run epx-train "${small[@]}" --ranks 2 --steps 1 --routing "$folder/text" --json
expect_code 0; lines "d[0]['load_max_over_mean'] > 4"
run epx-train "${small[@]}" --ranks 3 --steps 1 --routing "$folder/text"; expect_code 2; expect_err '2 ranks and this run has 3'

# EPX_STATS: a line per rank and step. 2 layers x 2 sequences x 32 tokens x 2 choices are 256.
EPX_STATS=$folder/stats run epx-train "${small[@]}" --ranks 2 --steps 3 --json
expect_code 0
[ "$(wc -l < "$folder/stats/experts0-rank0.jsonl")" = 3 ]; code=$?; expect_code 0
head -n 1 "$folder/stats/experts0-rank1.jsonl" | grep -q '"step": 0, .*"rank": 1, "ranks": 2, .*"routed": 256,'
code=$?; expect_code 0
# A validation between two steps is in the line of neither: what differs is how long it took.
sed 's/"wait_ms.*//' "$folder/stats/experts0-rank0.jsonl" > "$folder/without"
EPX_STATS=$folder/validated run epx-train "${small[@]}" --ranks 2 --steps 3 --eval-every 1 --json
expect_code 0; lines "all('validation_loss' in m for m in d)"
sed 's/"wait_ms.*//' "$folder/validated/experts0-rank0.jsonl" | cmp -s - "$folder/without"; code=$?; expect_code 0

run epx-train "${small[@]}" --ranks 2 --steps 3 --virtual-ep 8 --drop 0.5 --json
expect_code 0; lines "all(0.4 < m['drop_fraction'] for m in d)"

finish
