#!/bin/bash
# epx-repro: every scenario that this build can play, all transports; two faults at a time, whose verdict may be unknown
# and must never be a wrong name; bad input; the same trace twice; replay and comparison of records.
# shellcheck source=tests/support/shell.sh
. tests/support/shell.sh

export EPX_HANG_MS=500 # budgets of a test, not of a job
records=$(mktemp -d)
trap 'rm -rf "$records" "$out" "$err"' EXIT

bad() {
    local pattern=$1
    shift
    run epx-repro "$@"
    expect_code 2
    expect_err "^epx-repro: .*$pattern"
}

# ---- usage ----
run epx-repro --help && expect_code 0 && expect_quiet && expect_out 'EPX_HANG_MS shortens'
run epx-repro --version && expect_code 0 && expect_out '^epx-repro [0-9]'
bad 'no such scenario' --run one-shot
bad 'at least 2' --ranks 3 --domains 2
bad 'use pooled_wave, ragged or ring' --transport bagged
bad 'cannot be read' --against "$records/none"
bad 'has no flight records' --against "$records"
bad 'epx_repro_kernel' --kernel "$records/none.so"
# A value that a variable cannot have is bad usage.
EPX_FAULT='rank=x at=begin do=stop' run epx-repro; expect_code 2; expect_no_out .
expect_err '^epx-repro: .*rank=x.* is not understood: rank is a whole number'
EPX_WAVES=abc run epx-repro --minutes 5; expect_code 2; expect_err '^epx-repro: EPX_WAVES=abc is not one of'; expect_no_out .
# Settings with which no group opens end a play at once, however long it was to be.
EPX_RAGGED_WAVES=abc run epx-repro --minutes 5; expect_code 1; expect_out '^WRONG +given +none' && expect_out 'EPX_RAGGED_WAVES=abc is not one of'
EPX_WAVES=3 run epx-repro --run one-short --transport ring; expect_code 1; expect_out 'EPX_WAVES has no meaning for ring'

# ---- the list: every scenario of the documentation, with its verdict ----
run epx-repro --list && expect_code 0 && expect_quiet
for name in host-absent stuck-before-op slow-host zero-tokens zero-signal one-short signal-before-data unwritten-output \
    stale-epoch shape-mismatch call-desync two-graphs pause failed-route version-skew double-window mixed-order \
    not-resident pool-empty too-many-ranks rank-killed rack-behind link-flap link-cascade link-recovering clean-soak; do
    expect_out "^$name +[A-Z_n]"
done

# Sanitizers see other tests; budgets of half a second are not for them, nor rows that race on purpose.
if [ -n "${SANITIZE:-}" ]; then
    run epx-repro --run failed-route && expect_code 0
    finish
    exit
fi

# ---- scenarios ----
keys='{"name","ranks","domains","transport","expected","verdict","culprit","op","detect_ms","report_lines","ok"}'
timeout 400 "$bin/epx-repro" --run all --json > "$out" 2> "$err"
code=$? last='epx-repro --run all --json'
expect_code 0
expect_json
json "all($keys <= set(s) for s in d['scenarios'])"
json "all(s['ok'] is not False for s in d['scenarios'])"
json "all(s['report_lines'] <= 25 for s in d['scenarios'])"
json "all(s['detect_ms'] is None or s['detect_ms'] < 5000 for s in d['scenarios'])"
# Those with a verdict were found by rank and operation, not by name alone.
json "[s for s in d['scenarios'] if s['name'] == 'one-short'][0]['culprit'] == 1"
json "[s for s in d['scenarios'] if s['name'] == 'rack-behind'][0]['domains'] == 2"

for transport in pooled_wave ring; do
    for name in host-absent stuck-before-op one-short unwritten-output two-graphs failed-route; do
        run epx-repro --run "$name" --transport "$transport" && expect_code 0
    done
done

# Ranks that are processes, with groups, where the build has a fabric for them.
if "$bin/epx-info" -f | grep -Eq '^[* ]*ucx +[0-9]'; then
    for name in one-short host-stopped rank-killed signal-before-data rack-behind; do
        run epx-repro --run "$name" --fabric ucx && expect_code 0
    done
else
    echo 'epx-repro --fabric ucx: not looked at, this build has no such fabric'
fi

# ---- the same schedule twice ----
EPX_FAULT='seed=5; at=signal.pre do=delay:3 chance=0.05; at=end do=delay:2 chance=0.05' run epx-repro
expect_code 0
first=$(grep -o 'trace [0-9a-f]*' "$out")
EPX_FAULT='seed=5; at=signal.pre do=delay:3 chance=0.05; at=end do=delay:2 chance=0.05' run epx-repro
expect_out "$first"
EPX_FAULT='seed=6; at=signal.pre do=delay:3 chance=0.05; at=end do=delay:2 chance=0.05' run epx-repro
expect_no_out "$first"

# ---- two faults at a time: either of them, or UNKNOWN ----
# both 'VERDICT rank|...' SPECIFICATION
both() {
    EPX_FAULT=$2 run epx-repro
    last="EPX_FAULT='$2' epx-repro"
    expect_code 0
    expect_out "given +(UNKNOWN|$1)"
}
both 'STUCK_BEFORE_OP rank 1|HOST_ABSENT rank 3' \
    'rank=1 op=dispatch seq=62 at=begin do=spin:60000; rank=3 op=dispatch seq=62 at=enqueue do=skip'
both 'SIGNAL_LOST rank 1|STREAM_BLOCKED rank 3' \
    'rank=1 op=dispatch seq=62 peer=2 at=signal.pre do=drop; rank=3 op=dispatch seq=62 at=begin do=delay:60000'
both 'SIGNAL_LOST rank (1|3)' \
    'rank=1 op=dispatch seq=62 peer=2 at=signal.pre do=drop; rank=3 op=dispatch seq=62 peer=0 at=signal.pre do=drop'
both 'EPOCH_SKEW rank 1|STUCK_BEFORE_OP rank 0' \
    'rank=1 op=dispatch seq=62 peer=2 at=signal.pre do=stale; rank=0 op=combine seq=63 at=begin do=spin:60000'
both 'SIGNAL_LOST rank 2' \
    'rank=2 op=combine seq=63 peer=0 at=signal.pre do=drop; rank=1 op=dispatch seq=57 at=begin do=delay:200'
both 'HOST_ABSENT rank (1|2)' \
    'rank=1 op=dispatch seq=62 at=enqueue do=skip; rank=2 op=dispatch seq=62 at=enqueue do=skip'

# ---- records ----
run epx-repro --run one-short --keep && expect_code 0
kept=$(sed -n 's/.*records and reports are in //p' "$err")/one-short
run epx-repro --replay "$kept" && expect_code 0 && expect_out 'as recorded: no hang'
run epx-repro --replay "$kept" --perturb --seed 7 && expect_code 0 && expect_out 'perturbed by seed 7: no hang'
run epx-repro --against "$kept" --ranks 2 && expect_code 0 && expect_out 'lacks +ranks +4 there, 2 here'
run epx-repro --against "$kept" && expect_code 0 && expect_out '^0 things'
rm -rf "$(dirname "$kept")"

finish
