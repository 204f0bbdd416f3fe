#!/bin/bash
# epx-ab from outside: options, verdicts, each guard seen to fire, other programs' jobs, runs made before.
# shellcheck source=tests/support/shell.sh
. tests/support/shell.sh

folder=$(mktemp -d)
trap 'rm -rf "$folder" "$out" "$err"' EXIT
# As small as guards allow: under ThreadSanitizer the model's mathematics is most of the time.
shape=(--layers 2 --width 16 --heads 2 --head-width 8 --sequence 16 --window 8 --experts 8 --top-k 2 --expert-width 8
    --latent 8 --shared-width 8)
small=("${shape[@]}" --peak-flops 1e11 --steps 2 --discard 1)
all_guards='weights routing twins gap gradients payload accounting bytes fallback clocks registration window'
# Valid or inconclusive: a small model on a busy machine decides no speed, and no test asks for one.
expect_judged() {
    checks=$((checks + 1))
    [ "$code" = 0 ] || [ "$code" = 3 ] || wrong "exit code $code, neither 0 nor 3"
}

# ---- options -----------------------------------------------------------------------------------------------------------

run epx-ab --help && expect_code 0 && expect_quiet && expect_out '--arms' && expect_out 'for tests, see below'
expect_out 'exit code: 0 valid, 1 void'
for guard in $all_guards; do expect_out "$guard"; done
run epx-ab --version && expect_code 0 && expect_out '^epx-ab [0-9]'
run epx-ab; expect_code 2; expect_err '^epx-ab: nothing to compare: give --arms'
run epx-ab --arms ragged; expect_code 2; expect_err 'one arm has nothing to be compared with'
run epx-ab --arms ragged,auto; expect_code 2; expect_err "'auto' is no arm"
run epx-ab --arms ragged,ring:wave=3; expect_code 2; expect_err 'did you mean waves'
run epx-ab --arms ragged,ring:waves=3; expect_code 2; expect_err '^epx-ab: the arm ring:waves=3 cannot run: .*ring'
run epx-ab --arms ragged,rink; expect_code 2; expect_err 'the arm rink cannot run'
run epx-ab --arms ragged,ring --arm "x=true"; expect_code 2; expect_err 'give one kind'
run epx-ab --arms ragged,ring --preset hero --ranks 2; expect_code 1; expect_err '^epx-ab: 2 ranks in this process take at least [0-9.]+ [GT]B .*run fewer'
run epx-ab --arms ragged,ring --preset big; expect_code 2; expect_err "there is no preset 'big'"
run epx-ab --arms ragged,ring --ranks 3 --virtual-ep 64; expect_code 2; expect_err '--virtual-ep 64 is no multiple'
run epx-ab --arms ragged,ring --ranks 3 --ep 3; expect_code 2; expect_err 'give one of --ranks and --ep'
run epx-ab --arms ragged,ring --regime odd; expect_code 2; expect_err 'choose from fresh, spike'
run epx-ab --arms ragged,ring --inject nothing; expect_code 2; expect_err 'is no guard'
run epx-ab --arms ragged,ring --html "$folder/no/such"; expect_code 2; expect_err 'cannot be written'
run epx-ab --arms ragged,ring folder; expect_code 2; expect_err "'folder' is not expected here"
run epx-ab --arms ragged,ring --restore "$folder/none" "${small[@]}"; expect_code 2; expect_err 'cannot read the checkpoint'
EPX_TRANSPORT=ring run epx-ab --arms ragged,ring; expect_code 2; expect_err 'EPX_TRANSPORT=ring is set.*unset EPX_TRANSPORT'
EPX_WAVES=2 run epx-ab --arms ragged,pooled_wave; expect_code 2; expect_err 'unset EPX_WAVES'
EPX_RAGGED_WAVES=2 run epx-ab --arms ragged,ring; expect_code 2; expect_err 'unset EPX_RAGGED_WAVES'
EPX_CAPACITY_FACTOR=2 run epx-ab --arms ragged,ring; expect_code 2; expect_err 'unset EPX_CAPACITY_FACTOR'
EPX_CHECK=full run epx-ab --arms ragged,ring; expect_code 2; expect_err 'would be timed'

# ---- a comparison ------------------------------------------------------------------------------------------------------

run epx-ab "${small[@]}" --ranks 4 --virtual-ep 8 --arms pooled_wave,ragged,ring --pairs 3 --train-steps 12 \
    --checkpoint "$folder/ab.ckpt" --json - --html "$folder/ab.html"
expect_judged
expect_json
expect_err '^epx-ab: checkpoint [0-9a-f]{16} after 12 steps'
keys="'transport mfu mfu_executed drop_fraction sender_drop_fraction receiver_drop_fraction loss peak_bytes exposed_ms void'"
json "all(k in a for a in d['arms'] for k in $keys.split()) and {'arms', 'verdicts', 'scope', 'guards'} <= set(d)"
json "[a['transport'] for a in d['arms']] == ['pooled_wave', 'ragged', 'ring'] and not any(a['void'] for a in d['arms'])"
json "[g['name'] for g in d['guards']] == '$all_guards'.split()"
json "all(g['state'] == 'passed' or g['name'] == 'clocks' for g in d['guards'])"
json "all(a['assignments']['valid'] == a['assignments']['kept'] + a['assignments']['dropped_sender'] +
      a['assignments']['dropped_receiver'] == 3 * 2 * 2 * 4 * 32 * 2 for a in d['arms'])"
json "all(a['mfu_executed'] <= a['mfu'] and a['exposed_ms'] > 0 and a['peak_bytes'] > 0 for a in d['arms'])"
json "d['arms'][1]['receiver_drop_fraction'] == d['arms'][2]['receiver_drop_fraction'] == 0"
json "[r['ranks'] for r in d['arms'][0]['drops_by_rules']] == [8, 4]"
json "{v['verdict'] for v in d['verdicts']} <= {'DIFFERENT', 'EQUIVALENT', 'INCONCLUSIVE', None}"
json "sum(r['part'] == 'again' for r in d['runs']) == 3 and sum(r['part'] == 'twin' for r in d['runs']) == 3"
json "all(sum(r['arm'] == a['name'] and r['part'] == 'plain' for r in d['runs']) == 3 for a in d['arms'])"
json "len({r['weights'] for r in d['runs']}) == 1"
json "d['scope']['build_id'] and len(d['scope']['libraries']) > 1 and d['scope']['regime'] and d['scope']['does_not_show']"
# Runs of one arm on one text are the same to the bit, and so are their drops.
json "all(r['loss'] == s['loss'] and r['assignments'] == s['assignments'] for r in d['runs'] for s in d['runs']
      if (r['arm'], r['round'], {r['part'], s['part']}) == (s['arm'], s['round'], {'plain', 'again'}))"
grep -o '"loss": [0-9.]*' "$out" | sort > "$folder/first"
hash=$(sed -n 's/.*"checkpoint_hash": "\(.*\)",/\1/p' "$out")
checks=$((checks + 1))
if grep -Eq '<script|https?:|url\(|src=|<link|@import|nan' "$folder/ab.html" || ! grep -q '</html>' "$folder/ab.html"; then
    wrong 'the page is not whole, or needs something from outside'
fi

# The checkpoint that was kept gives the same runs again.
run epx-ab "${small[@]}" --ranks 4 --virtual-ep 8 --arms pooled_wave,ragged,ring --pairs 3 --restore "$folder/ab.ckpt" --json -
expect_judged
json "d['scope']['checkpoint_hash'] == '$hash' and d['scope']['checkpoint_step'] == 12"
grep -o '"loss": [0-9.]*' "$out" | sort | cmp -s - "$folder/first" || wrong 'losses differ after --restore'

# The same arm twice is an A/A test: nothing that is exact may differ.
run epx-ab "${small[@]}" --ranks 2 --arms ragged,ragged --pairs 2 --train-steps 6 --json -
expect_judged
json "[a['name'] for a in d['arms']] == ['ragged', 'ragged#2']"
json "all(v['verdict'] == 'EQUIVALENT' for v in d['verdicts'] if v['quantity'] in ('drops', 'loss', 'memory'))"

# Groups side by side, settings of arms, no drops at all, a table.
run epx-ab "${small[@]}" --ep 2 --replicas 2 --pairs 2 --train-steps 6 \
    --arms pooled_wave:overflow=extra_wave,ragged:capacity_factor=dropless:waves=1,pooled_wave:waves=2:sender_factor=2
expect_judged
expect_out '^(VALID|INCONCLUSIVE): All guards hold'
expect_out 'drops +EQUIVALENT +exactly 0 of'
expect_out 'does not show'
run epx-ab "${small[@]}" --ranks 3 --pairs 1 --no-adjust --train-steps 0 --arms ragged:accept=fair,ring:accept=waterfill
expect_code 3
expect_out 'fresh: after 0 steps'
expect_out 'one pair decides nothing'

# ---- guards fire -------------------------------------------------------------------------------------------------------

for guard in $all_guards; do
    run epx-ab "${small[@]}" --steps 5 --ranks 2 --arms ragged,pooled_wave --pairs 2 --no-adjust --restore "$folder/ab.ckpt" \
        --inject "$guard" --json -
    if [ "$guard" = clocks ] && grep -q '"clocks": "not shown' "$out"; then
        echo 'clocks: this machine shows none, so that guard was not tried'
        continue
    fi
    expect_code 1
    json "[a['void'] for a in d['arms']] == [False, True] and d['outcome'] == 'void'"
    json "[a['state'] for g in d['guards'] if g['name'] == '$guard' for a in g['arms']] == ['passed', 'void']"
    json "d['arms'][1]['void_reasons'] and not d['arms'][0]['void_reasons']"
    json "all(v['verdict'] is None for v in d['verdicts'])"
done

# ---- other programs ----------------------------------------------------------------------------------------------------

# say MS DROPS: a job of four steps that prints one line each.
cat > "$folder/say" <<'JOB'
#!/bin/sh
for step in 10 11 12 13; do
    echo "{\"step\": $step, \"loss\": 2.5, \"step_ms\": $1, \"drop_fraction\": $2, \"transport\": \"mine\"}"
done
JOB
chmod +x "$folder/say"
run epx-ab --discard 1 --pairs 3 --arm "a=$folder/say 10 0.02" --arm "b=$folder/say 12.5 0.02" --json -
expect_code 0
json "[a['name'] for a in d['arms']] == ['a', 'b'] and d['arms'][0]['step_ms'] == 10 and d['arms'][0]['mfu'] is None"
json "[v['verdict'] for v in d['verdicts'] if v['quantity'] == 'step_ms'] == ['DIFFERENT']"
json "abs(d['arms'][1]['drop_fraction'] - 0.02) < 1e-9 and d['arms'][0]['transport'] == 'mine'"
run epx-ab --pairs 2 --arm "a=$folder/say 10 0" --arm "b=exit 4"; expect_code 1
expect_out 'the command ended with status 4'
run epx-ab --pairs 2 --arm "a=$folder/say 10 0" --arm 'b=echo hello'; expect_code 1; expect_out 'wrote no step'
run epx-ab --pairs 2 --timeout-s 1 --arm "a=$folder/say 10 0" --arm 'b=sleep 60'; expect_code 1; expect_out 'longer than'
run epx-ab --pairs 2 --arm "a=$folder/say 10 0" --arm "b=$folder/say 10 0 | grep -v 12"; expect_code 1
expect_out 'a hole: step 13 follows step 11'
run epx-ab --arm 'a=true'; expect_code 2; expect_err 'one arm has nothing'

job="$bin/epx-train ${shape[*]} --ranks 2 --steps 4 --no-bigram --eval-sequences 2 --peak-flops 1e11 --json"
run epx-ab --discard 1 --pairs 2 --arm "r=EPX_TRANSPORT=ring $job" --arm "p=EPX_TRANSPORT=pooled_wave $job" --json -
expect_judged
json "[a['transport'] for a in d['arms']] == ['ring', 'pooled_wave'] and d['arms'][0]['mfu'] > 0"
json "d['arms'][1]['receiver_drop_fraction'] > 0"

# ---- runs made before --------------------------------------------------------------------------------------------------

for arm in ring ragged; do
    mkdir "$folder/$arm"
    for r in 1 2 3; do EPX_TRANSPORT=$arm $job > "$folder/$arm/$r.jsonl"; done
done
run epx-ab --compare "$folder/ring" "$folder/ragged/" --discard 1 --json -
expect_judged
json "[a['name'] for a in d['arms']] == ['ring', 'ragged'] and all(a['runs'] == 3 for a in d['arms'])"
json "abs(d['arms'][0]['loss'] - d['arms'][1]['loss']) < 0.1 and sum(r['part'] == 'again' for r in d['runs']) == 4"
sed -i 3d "$folder/ring/1.jsonl" "$folder/ring/2.jsonl"
run epx-ab --compare "$folder/ring" "$folder/ragged" --discard 1; expect_code 1; expect_out 'a hole: step 3 follows step 1'
run epx-ab --compare "$folder/ring"; expect_code 2; expect_err 'needs 2 to 8 folders, and there are 1'
mkdir "$folder/empty"
run epx-ab --compare "$folder/ring" "$folder/empty"; expect_code 2; expect_err 'has no run'
run epx-ab --compare "$folder/ring" "$folder/none"; expect_code 2; expect_err 'is no folder'

finish
