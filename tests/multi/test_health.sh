#!/bin/bash
# epx-health: a made-up sysfs tree and a made-up NVML library that change between samples; a probe; views.
# shellcheck source=tests/support/shell.sh
. tests/support/shell.sh

fake=$(mktemp -d)
trap 'rm -rf "$fake" "$out" "$err"' EXIT
sys=$fake/sys history=$fake/history
nvml=$TEST_BUILD/tests/plugins/fake_nvml.so
export FAKE_NVML=$fake/nvml

# put DEVICE/PORT FILE VALUE: below the port's folder.
put() {
    mkdir -p "$(dirname "$sys/class/infiniband/${1%/*}/ports/${1#*/}/$2")"
    printf '%s\n' "$3" > "$sys/class/infiniband/${1%/*}/ports/${1#*/}/$2"
}
# ask [OPTION...]: two samples of the tree, by JSON.
ask() { run epx-health --sysfs "$sys" --nvml none --interval 0.01 --host h1 --json "$@"; }
of() { echo "[l for l in d[\"links\"] if l[\"link\"] == \"$1\"][0]"; }

run epx-health --help && expect_code 0 && expect_quiet && expect_out '--probe' && expect_out 'CANNOT TELL'
run epx-health --wath; expect_code 2
expect_err 'did you mean --watch'
run epx-health stray.json; expect_code 2
run epx-health --interval 0; expect_code 2

# What names nothing is refused, not looked at in vain; an exit code of lost output is no verdict.
run epx-health --sysfs "$sys" --nvml none; expect_code 2
expect_err '^epx-health: --sysfs: .*/sys is no folder: name one'
mkdir "$sys" "$fake/none"
run epx-health --sysfs "$sys" --nvml "$fake/libnone.so" --interval 0.01; expect_code 2
expect_err 'libnone.so.*; name a library of NVML, or none'
run epx-health --sysfs "$sys" --nvml none --interval 0.01 --history "$fake"; expect_code 2
expect_err 'cannot read the history .*: name another file'
run epx-health --ledger "$fake"; expect_code 2
expect_err 'cannot read the ledger .*: name a file'
for more in '' --json; do
    last="epx-health $more > /dev/full"
    "$bin/epx-health" --sysfs "$sys" --nvml none --interval 0.01 $more > /dev/full 2> "$err"
    code=$?
    expect_code 4
    expect_err '^epx-health: cannot write the output: .*; the exit code is no verdict$'
done

# A file that cannot be written condemns no host.
run epx-health --sysfs "$sys" --nvml none --interval 0.01 --history "$fake/no/such"; expect_code 2
expect_err 'cannot write the history .*no/such.*make its folder'

# Nothing to look at is no health.
ask; expect_code 3
expect_json
json 'd["verdict"] == "CANNOT TELL" and d["links"] == [] and any("ports: none" in n for n in d["not_observed"])'

# A port with both folders of counters, one with hw_counters alone (as soft-RoCE), one that is down.
put mlx5_0/1 state '4: ACTIVE' && put mlx5_0/1 counters/symbol_error 3 && put mlx5_0/1 counters/link_downed 1
put mlx5_0/1 counters/port_xmit_data 123456 && put mlx5_0/1 hw_counters/out_of_sequence 0
put mlx5_0/1 hw_counters/lifespan 10
put rxe0/1 state '4: ACTIVE' && put rxe0/1 hw_counters/link_downed 0 && put rxe0/1 hw_counters/sent_pkts 7
ask; expect_code 0
json 'd["verdict"] == "OK" and [l["link"] for l in d["links"]] == ["mlx5_0/1", "rxe0/1"]'
json "[r for r in $(of mlx5_0/1)[\"readings\"] if r[\"name\"] == \"symbol_error\"][0][\"value\"] == 3"
json "not [r for r in $(of mlx5_0/1)[\"readings\"] if r[\"name\"] == \"lifespan\"]"
json "not [r for r in $(of rxe0/1)[\"readings\"] if r[\"name\"] == \"symbol_error\"]"
# A state alone is not enough to call a link healthy; a counter that cannot be read is not zero.
put bare0/1 state '4: ACTIVE' && mkdir -p "$sys/class/infiniband/bare0/ports/1/counters/symbol_error"
ask; expect_code 3
json "$(of bare0/1)[\"verdict\"] == \"CANNOT TELL\" and \"no counter\" in $(of bare0/1)[\"reasons\"]"
json "[r for r in $(of bare0/1)[\"readings\"] if r[\"name\"] == \"symbol_error\"][0][\"value\"] is None"
json "[r for r in $(of bare0/1)[\"readings\"] if r[\"name\"] == \"symbol_error\"][0][\"code\"] != 0"
rm -r "$sys/class/infiniband/bare0"

# History: samples of earlier runs count. One flap, then two more, then a reset.
ask --history "$history" && expect_code 0
put mlx5_0/1 counters/link_downed 2
ask --history "$history" && expect_code 0
json 'd["verdict"] == "WATCH" and "once" in '"$(of mlx5_0/1)[\"reasons\"]"
put mlx5_0/1 counters/link_downed 4
ask --history "$history"; expect_code 1
json 'd["verdict"] == "CORDON" and "3 times" in '"$(of mlx5_0/1)[\"reasons\"]"
put mlx5_0/1 counters/link_downed 0
ask --history "$history"; expect_code 1
json "\"3 times\" in $(of mlx5_0/1)[\"reasons\"]"
# Another host's samples in the same file are not ours; a line that was cut short is skipped and said.
echo '{"time": 5, "host": "h1", "readi' >> "$history"
run epx-health --sysfs "$sys" --nvml none --interval 0.01 --host h2 --history "$history"
expect_code 0
expect_err '1 lines of .* were skipped' && expect_out '^h2: OK$' && expect_out '2 links OK'
json_lines=$(grep -c '^{"time":' "$history")
[ "$json_lines" = 11 ] || wrong "$json_lines lines in the history, not 11"

# A link whose recoveries still rise is to be taken out; one that rose once is to be watched.
rm -f "$history"
for value in 0 2; do
    put mlx5_0/1 counters/link_error_recovery "$value"
    ask --history "$history"
done
json 'd["verdict"] == "WATCH"'
put mlx5_0/1 counters/link_error_recovery 3
run epx-health --sysfs "$sys" --nvml none --interval 0.01 --host h1 --history "$history"
expect_code 0 && expect_out 'none since the last look'
(sleep 0.3 && put mlx5_0/1 counters/link_error_recovery 4) &
run epx-health --sysfs "$sys" --nvml none --interval 0.6 --host h1 --history "$history"
wait
expect_code 1 && expect_out '^  mlx5_0/1 +CORDON +recovered 4 times.*and it goes on'

# --watch says what changes, once: down, and up again.
rm -f "$history"
(sleep 0.5 && put rxe0/1 state '1: DOWN' && sleep 0.5 && put rxe0/1 state '4: ACTIVE') &
run epx-health --sysfs "$sys" --nvml none --interval 0.1 --watch --seconds 2 --host h1
wait
expect_code 0
expect_out 'rxe0/1  CORDON  is not active' && expect_out 'rxe0/1  WATCH  flap: went down and came back once'
[ "$(grep -c 'CORDON' "$out")" = 1 ] || wrong 'the same verdict was said again'
put rxe0/1 state '1: DOWN'
ask && expect_code 0
json "$(of rxe0/1)[\"verdict\"] == \"WATCH\" and \"never active\" in $(of rxe0/1)[\"reasons\"]"
rm -r "$sys"

# NVML: two GPUs with two links each. Field 215 is a link's recoveries, 91 their number, 59 the sum of older GPUs.
cat > "$FAKE_NVML" <<'END'
gpus 2
fabric 0 0 3
field 0 91 0 0 2
field 1 91 0 0 2
field 0 59 0 0 0
field 1 59 0 0 0
link 0 0 0 1
link 0 1 0 1
link 1 0 0 1
link 1 1 0 1
field 0 215 0 0 5
field 0 215 1 0 5
END
gpus() { run epx-health --sysfs "$fake/none" --nvml "$nvml" --interval 0.5 --host h1 "$@"; }
gpus --json; expect_code 3
# Links of GPU 1 have a state alone; what is unsupported keeps its code and is no zero.
json "$(of GPU0/nvlink0)[\"verdict\"] == \"OK\" and $(of GPU1/nvlink0)[\"verdict\"] == \"CANNOT TELL\""
json "[(r[\"value\"], r[\"code\"]) for r in $(of GPU0)[\"readings\"] if r[\"name\"] == \"nvlink_replays\"] == [(None, 3)]"
json "[(r[\"value\"], r[\"code\"]) for r in $(of GPU1)[\"readings\"] if r[\"name\"] == \"fabric_state\"] == [(None, 3)]"
(sleep 0.25 && sed -i 's/^field 0 215 1 0 5/field 0 215 1 0 6/; s/^link 1 1 0 1/link 1 1 0 0/; $a xid 0 79\nxid 1 31' "$FAKE_NVML") &
gpus; wait
expect_code 1
expect_out '^  GPU0/nvlink1 +WATCH +recovered 1 times' && expect_out '^  GPU1/nvlink1 +CORDON +is not active'
expect_out '^  GPU0 +CORDON +xid_hardware: 1 ' && expect_out '^  GPU1 +WATCH +xid_other'
expect_out '^  no NVLink of this host tells \(NVML.s code\): nvlink_recoveries_failed \(3\), nvlink_replays \(3\), '
expect_no_out 'tells.*nvlink_recoveries \(' # some do

# NVLink 4: the driver knows the fields 161 to 163 alone, or only the function that counts; fields of later generations
# have codes of their own. Errors that rise are the link's.
cat > "$FAKE_NVML" <<'END'
gpus 1
field 0 91 0 0 2
link 0 0 0 1
link 0 1 0 1
field 0 215 0 3 0
field 0 162 0 0 0
field 0 161 0 0 7
field 0 163 0 0 9
errors 0 0 3 0 7
errors 0 1 0 0 5
errors 0 1 2 0 2
END
gpus --json; expect_code 0
json "[(r[\"value\"]) for r in $(of GPU0/nvlink0)[\"readings\"] if r[\"name\"] in (\"nvlink_recoveries\", \"nvlink_replays\", \"nvlink_crc_flit_errors\")] == [0, 7, 9]"
json "$(of GPU0/nvlink1)[\"verdict\"] == \"OK\""
# A link that does not say that it corrects errors has its CRC errors judged: they are sent again.
(sleep 0.25 && sed -i 's/^errors 0 1 0 0 5/errors 0 1 0 0 900/; s/^errors 0 0 3 0 7/errors 0 0 3 0 36007/' "$FAKE_NVML") &
gpus; wait
expect_code 1
expect_out '^  GPU0/nvlink0 +CORDON +nvlink_crc_data_errors: 36000 more'
expect_out '^  GPU0/nvlink1 +CORDON +nvlink_replays: 895 more'
(unset FAKE_NVML && exec timeout 20 "$bin/epx-health" --sysfs "$fake/none" --nvml "$nvml" --interval 0.01) > "$out" 2> "$err"
expect_out 'not looked at: GPUs: NVML does not start: its code 9'

# Racks: the worst host is the rack's verdict.
for host in a:r1:OK b:r1:CORDON c:r2:OK d:r2:'CANNOT TELL'; do
    IFS=: read -r name rack verdict <<< "$host"
    printf '{"host": "%s", "rack": "%s", "time": 1, "verdict": "%s", "links": [{"link": "mlx5_0/1", "verdict": "%s", "reasons": "why"}]}\n' \
        "$name" "$rack" "$verdict" "$verdict" > "$fake/$name.json"
done
run epx-health --view "$fake"/[a-d].json; expect_code 1
expect_out '^r1 +CORDON +2 hosts' && expect_out '^  b +CORDON +mlx5_0/1 why' && expect_out '^r2 +CANNOT TELL'
run epx-health --view "$fake"/[cd].json --json; expect_code 3
expect_json && json '[r["rack"] for r in d["racks"]] == ["r2"] and len(d["racks"][0]["hosts"]) == 2'
echo '{}' > "$fake/e.json"
run epx-health --view "$fake/e.json"; expect_code 2

# The ledger: a rack that fails two jobs, which run well elsewhere.
book() { run epx-health --ledger "$fake/ledger" --placement "$1"; }
book job=j1,rack=r1,fault=yes; expect_code 3
book job=j1,rack=r2,fault=no && book job=j2,rack=r2,fault=no
book job=j2,rack=r1,fault=yes && expect_code 0
expect_out '^the fault stays with rack r1' && expect_out '^  rack r1 +2 +2$' && expect_out '^  job j2 +2 +1$'
run epx-health --ledger "$fake/ledger" --json && expect_json && json 'd["blame"] == "rack" and d["who"] == "r1"'
book job=j1; expect_code 2

# A probe of threads: every pair once; two ranks have nothing to be compared with.
run epx-health --probe --ranks 5 --probe-ms 5 --probe-bytes 64K --slow 0.01 --json && expect_code 0 && expect_json
json 'len(d["pairs"]) == 10 and all(p["bytes_per_s"] > 0 for p in d["pairs"]) and d["verdict"] == "OK"'
json 'len({(p["a"], p["b"]) for p in d["pairs"]}) == 10'
run epx-health --probe --ranks 2 --probe-ms 5; expect_code 3
# As processes of a launcher: one rank answers for all.
for rank in 0 1 2; do
    EPX_RANK=$rank EPX_WORLD_SIZE=3 EPX_ROOT=127.0.0.1:$((20000 + $$ % 12000)) timeout 60 "$bin/epx-health" --probe --probe-ms 5 \
        --slow 0.01 > "$fake/rank$rank" 2>&1 &
done
wait
last='epx-health --probe, three processes'
cat "$fake"/rank? > "$out"
if "$bin/epx-info" -b | grep -Eq '^ucx +yes'; then
    expect_out '^3 pairs of 3 ranks' && expect_out '^OK: no pair stands out$'
else
    expect_out 'no fabric can run here: .*ucx: '
fi
finish
