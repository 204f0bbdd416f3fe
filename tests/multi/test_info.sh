#!/bin/bash
# epx-info: what it shows must be what the library does with the environment at hand.
# shellcheck source=tests/support/shell.sh
. tests/support/shell.sh

# The common part of every program.
run epx-info --help && expect_code 0 && expect_quiet
expect_out '^usage: epx-info \[OPTION...\]' && expect_out '--version' && expect_out 'experts of the layer \(64\)'
run epx-info --version && expect_code 0 && expect_out '^epx-info [0-9]+\.[0-9]+\.[0-9]+$'
run epx-info --rnaks 3; expect_code 2
expect_err '^epx-info: --rnaks is no option: did you mean --ranks\?$'
run epx-info --ranks 0; expect_code 2
expect_err '^epx-info: --ranks: .0. is not an integer from 1 to'
run epx-info stray; expect_code 2

# First what will be used, and why.
run epx-info && expect_code 0 && expect_quiet
expect_out '^transport +[a-z_]+ +auto: ' && expect_out '^fabric +local +auto: ' && expect_out '^device +host +auto: '
for transport in pooled_wave ragged ring; do
    EPX_TRANSPORT=$transport run epx-info
    expect_code 0
    expect_out "^transport +$transport +EPX_TRANSPORT=$transport\$"
    run epx-info --transport $transport
    expect_out "^transport +$transport +the program asks for $transport\$"
done
# The environment wins over the program.
EPX_TRANSPORT=ring run epx-info --transport ragged && expect_out '^transport +ring +EPX_TRANSPORT=ring$'
run epx-info --transport ring --ranks 5 && expect_out '^  5 waves'

# -c: value and origin of each setting.
EPX_WAVES=5 EPX_RAGGED_WAVES=4 run epx-info -c --transport ragged && expect_code 0
expect_out '^EPX_WAVES +4 +EPX_RAGGED_WAVES ' && expect_out '^  4 waves'
expect_out '^EPX_CAPACITY_FACTOR +1.15 +default ' && expect_out '^EPX_TRANSPORT +ragged +program '
EPX_WAVES=5 EPX_RAGGED_WAVES=4 run epx-info -c --transport pooled_wave && expect_out '^EPX_WAVES +5 +environment '
run epx-info -c --json && expect_json
json '{s["variable"] for s in d["settings"]} >= {"EPX_TRANSPORT", "EPX_TIMEOUT_MS", "EPX_CHECK", "EPX_LOG"}'
json 'all(s["source"] == "default" and s["problem"] is None and s["help"] for s in d["settings"])'
EPX_WAVE=3 run epx-info -c --json
json 'd["settings"][-1]["variable"] == "EPX_WAVE" and "EPX_WAVES" in d["settings"][-1]["problem"]'
# Every wrong value is shown in its place, not only the first.
EPX_ACCEPT=fiar EPX_WAVES=abc run epx-info -c; expect_code 1
expect_out '^EPX_ACCEPT +fiar +environment +!! .*did you mean "fair"' && expect_out '^EPX_WAVES +abc +environment +!! '
expect_err '^epx-info: a group of this shape cannot be opened: EPX_'

# -t, -f: score or reason.
run epx-info -tf && expect_code 0
expect_out '^[* ] pooled_wave +[1-9]' && expect_out '^[* ] ring +[1-9]' && expect_out '^\* local +[1-9]'
expect_out '^  ucx +([1-9]|no +[a-z])' && expect_out '^  nccl +([1-9]|no +[a-z])'
EPX_OVERFLOW=spill run epx-info -t --json && expect_json
json '[t["score"] > 0 for t in d["transports"] if t["name"] == "ragged"] == [False]'
json '["EPX_OVERFLOW" in t["reason"] for t in d["transports"] if t["name"] == "ragged"] == [True]'
EPX_TRANSPORT=Ragged run epx-info -t; expect_code 1
expect_err 'EPX_TRANSPORT=Ragged is not one of: .*did you mean "ragged"'
EPX_FABRIC=nccl EPX_DEVICE=host run epx-info; expect_code 1
expect_out '^fabric +none' && expect_out '^device +host'
EPX_TRANSPORT=/nowhere/lib.so run epx-info; expect_code 1
expect_err '/nowhere/lib.so'
run epx-info --experts 4 --top-k 5; expect_code 1
expect_err 'top_k is 5'

# -m: the items sum up to the total; a named transport is the only column.
run epx-info -m --json --ranks 3 --experts 7 --top-k 2 --tokens 100 --width 40 && expect_json && expect_code 0
json 'len(d["memory"]) == 3 and all(m["failure"] is None for m in d["memory"])'
json 'all(sum(i["bytes"] for i in m["items"]) == m["total_bytes"] > 0 for m in d["memory"])'
json 'all(sum(i["bytes"] for i in m["items"] if i["device_memory"]) == m["device_bytes"] for m in d["memory"])'
json 'd["use"]["memory_bytes"] in [m["total_bytes"] for m in d["memory"]]'
EPX_TRANSPORT=ring run epx-info -m --json
json '[m["transport"] for m in d["memory"]] == ["ring"]'
EPX_CAPACITY_FACTOR=dropless run epx-info --json && cp "$out" "$out.dropless"
run epx-info --json
json "d['use']['memory_bytes'] < json.load(open('$out.dropless'))['use']['memory_bytes']"
rm -f "$out.dropless"

# -d, -b: the host is measured, GPU rates are the published ones.
run epx-info -d -b --json && expect_json
json '[x["copy_bytes_per_s"] > 1e8 and x["units"] >= 1 for x in d["devices"] if x["name"] == "host"] == [True]'
json '{p["name"]: p["peak_flops"] for p in d["gpu_peaks"]} == {"GB200": 2.5e15, "H200": 989e12, "H100": 989e12}'
json 'all(p["reason"] for p in d["build"]) and "openblas" in [p["name"] for p in d["build"]]'
run epx-info -a && expect_code 0 && expect_out '^openblas +(yes|no)'

# A full disk is not success.
"$bin/epx-info" > /dev/full 2> "$err"; code=$? last='epx-info > /dev/full'
expect_code 1
expect_err 'cannot write the output'
# -T: a machine, drawn, and a plan; the plans themselves are tested in tests/unit/topology_plans.c.
run epx-info -T && expect_code 0
if "$bin/epx-info" -b | grep -Eq '^hwloc +yes'; then
    expect_out '^topology of this machine: [1-9]' && expect_out '^ +rank +node +cores'
    run epx-info --topology-file tests/unit/machines/dgx-h100.xml && expect_code 0
    expect_out '^ +GPU 3 +0000:61:00.0' && expect_out '^ +NIC 11 +0000:dc:00.0 +mlx5_11 +ibp220s0 +up$'
    expect_out '^ +7 +1 +14 +98-111,210-223 +7 +mlx5_11 +switch$'
    run epx-info --topology-file tests/unit/machines/gb200-tray.xml --host-ranks 2 --json && expect_json && expect_code 0
    json '[n["cores"] for n in d["topology"]["nodes"]] == [72, 72, 0, 0, 0, 0] and len(d["topology"]["gpus"]) == 4'
    json '[p["processors"] for p in d["topology"]["plan"]] == ["0-35", "36-71"]'
    json 'd["topology"]["near"][2] == ["machine"] * 3 + ["node"] * 3'
    run epx-info --topology-file README.md; expect_code 2
    expect_err 'README.md'
else
    expect_out '^topology: nothing is known: .*hwloc'
fi
EPX_PIN=no run epx-info -c; expect_code 1
expect_out '^EPX_PIN +no +environment +!! '

# The variable switches what is said beforehand, what steps write, and which way bytes are counted to have gone.
ran=$(mktemp -d)
train=(--preset tiny --steps 2 --layers 2 --width 32 --heads 4 --head-width 8 --sequence 32 --window 16 --experts 8 --top-k 2
    --expert-width 16 --latent 16 --shared-width 16 --no-bigram --eval-sequences 2)
for transport in pooled_wave ragged ring; do
    EPX_TRANSPORT=$transport run epx-info --json && expect_json && json "d['use']['transport']['name'] == '$transport'"
    EPX_TRANSPORT=$transport EPX_STATS=$ran/$transport run epx-train "${train[@]}" --ranks 2 && expect_code 0
    run epx-info --stats "$ran/$transport" --json && expect_json && expect_code 0
    json "{r['transport'] for r in d['ran']} == {'$transport'} and {r['rank'] for r in d['ran']} == {0, 1}"
    json 'all(r["steps"] == 2 and r["sent_bytes"] > 0 and r["message_bytes"] == 0 for r in d["ran"])'
    json '{r["path"] for r in d["ran"]} == {"stores in one process"}'
    json "not print(sum(r['sent_bytes'] for r in d['ran']), file=open('$ran/bytes', 'a'))"
done
[ "$(sort -u "$ran/bytes" | wc -l)" = 3 ] || wrong 'transports have sent equal bytes'
if "$bin/epx-info" -b | grep -Eq '^ucx +yes' && command -v mpirun > /dev/null; then
    export UCX_TLS=tcp,self UCX_NET_DEVICES=lo OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    EPX_STATS=$ran/tcp mpirun --oversubscribe -n 2 "$bin/epx-train" "${train[@]}" > /dev/null 2>&1
    unset UCX_TLS UCX_NET_DEVICES
    run epx-info --stats "$ran/tcp" --json && expect_json && expect_code 0
    json 'all(r["path"] == "messages" and r["message_bytes"] >= r["sent_bytes"] > 0 for r in d["ran"])'
fi
mkdir "$ran/empty" && run epx-info --stats "$ran/empty"; expect_code 1
expect_err 'no step is in'
run epx-info --stats "$ran/nowhere"; expect_code 1
expect_err 'name the folder that EPX_STATS named'
rm -rf "$ran"

# NCCL: what is loaded is told with its file, or that there is none.
run epx-info --json
json '(d["use"]["nccl"]["loaded"] is None) == (d["use"]["nccl"]["file"] is None) and d["use"]["nccl"]["compiled"]'
json '0 < d["use"]["memory_device_bytes"] <= d["use"]["memory_bytes"]'

finish
