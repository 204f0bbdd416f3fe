#!/bin/bash
# epx-health and NVLinks of an H200: what NVML said of a healthy machine (two H200, driver 580, which
# exchanged rows over NCCL meanwhile), played back by a made-up library; and the same machine with faults.
# shellcheck source=tests/support/shell.sh
. tests/support/shell.sh

fake=$(mktemp -d)
trap 'rm -rf "$fake" "$out" "$err"' EXIT
mkdir "$fake/none"
nvml=$TEST_BUILD/tests/plugins/fake_nvml.so
export FAKE_NVML=$fake/nvml

# Of each link: corrected errors before, how many more a second later; CRC errors of its lanes, likewise.
links=("235:32:159:20 197:29:132:22 145:19:93:13 214:22:144:19 232:33:150:22 143:15:95:10 201:15:137:10 134:16:84:10 136:27:96:17
        340:43:231:27 397:44:260:30 132:19:87:12 129:8:84:1 365:58:242:37 188:22:123:15 144:23:96:14 321:39:210:24 301:38:202:26"
       "256:21:167:14 217:24:142:16 115:5:76:4 150:13:100:10 128:8:85:5 97:10:66:1 142:9:95:8 83:14:60:1 262:38:170:25
        617:52:321:0 167:25:113:15 177:16:109:11 244:19:160:13 450:34:296:18 178:18:113:11 227:28:155:21 301:35:198:22 751:48:340:0")

# machine LATER: what NVML says, in the second look where LATER is 1. Fields: 91 links of a GPU, 161 to 163 replays,
# recoveries and CRC errors of flits, 164 MB/s, 166 version (6 is NVLink 4), 230 what the driver wants. Counters: 3 and 4.
# Every other field answers 3, not supported, as the driver does.
machine() {
    local gpu link=0 ecc ecc_more crc crc_more
    echo 'gpus 2'
    for gpu in 0 1; do
        printf 'fabric %d 0 3\nfield %d 230 0 0 0\nfield %d 91 0 0 18\n' $gpu $gpu $gpu
        link=0
        for entry in ${links[gpu]}; do
            IFS=: read -r ecc ecc_more crc crc_more <<< "$entry"
            echo "link $gpu $link 0 1"
            printf "field $gpu %d $link 0 %d\n" 161 0 162 0 163 0 164 26562 166 6
            printf "errors $gpu $link %d 0 %d\n" 0 0 1 0 2 0 3 $((crc + $1 * crc_more)) 4 $((ecc + $1 * ecc_more))
            link=$((link + 1))
        done
    done
}

# look SCRIPT OPTION...: the machine as it was, then as it is with the sed script; the history joins both.
look() {
    local script=$1 say=(--sysfs "$fake/none" --nvml "$nvml" --interval 0.01 --host h1 --history "$fake/history")
    shift
    rm -f "$fake/history"
    machine 0 > "$fake/nvml"
    run epx-health "${say[@]}"
    machine 1 | sed "$script" > "$fake/nvml"
    run epx-health "${say[@]}" "$@"
}
of() { echo "[r for l in d[\"links\"] if l[\"link\"] == \"$1\" for r in l[\"readings\"] if r[\"name\"] == \"$2\"][0]"; }

# Healthy: errors that links have corrected are shown, and nobody's fault.
look '' --json
expect_code 0 && expect_quiet && expect_json
json 'd["verdict"] == "OK" and [l["verdict"] for l in d["links"]] == 38 * ["OK"]'
json "($(of GPU0/nvlink13 nvlink_ecc_errors)[\"value\"], $(of GPU0/nvlink13 nvlink_ecc_errors)[\"increments\"]) == (423, 58)"
json "($(of GPU0/nvlink13 nvlink_crc_lane_errors)[\"value\"], $(of GPU0/nvlink13 nvlink_crc_lane_errors)[\"increments\"]) == (279, 37)"
json "($(of GPU1/nvlink8 nvlink_mbytes_per_s)[\"value\"], $(of GPU1/nvlink8 nvlink_version_code)[\"value\"]) == (26562, 6)"
json "$(of GPU1/nvlink8 nvlink_rcv_errors)[\"code\"] == 3 and $(of GPU1 gpu_recovery_action)[\"verdict\"] == \"OK\""

# One link that sends again and again and one whose GPU is to be reset are out. One that corrects 5,000 errors while its
# neighbours correct at most 58, and one at half the speed, are to be watched. All others are OK.
look 's/^field 1 161 8 0 0/field 1 161 8 0 900/; s/^field 0 230 0 0 0/field 0 230 0 0 1/
      s/^errors 0 3 4 0 236/errors 0 3 4 0 5214/; s/^field 1 164 2 0 26562/field 1 164 2 0 13281/'
expect_code 1
expect_out '^  GPU1/nvlink8 +CORDON +nvlink_replays: 900 more in [0-9.]+ s, counted as if it were 6 min: 9e\+03 an hour'
expect_out '^  GPU0 +CORDON +the driver wants a reset of the GPU$'
expect_out '^  GPU0/nvlink3 +WATCH +nvlink_ecc_errors: 5000 more, over 100 times'
expect_out '^  GPU1/nvlink2 +WATCH +is slower than the other links: 13281 MB/s, they have 26562$'
expect_out '^  34 links OK$'
expect_out '^  corrected by the links themselves: nvlink_crc_lane_errors 524 more on 36 links, at most 37 on one; nvlink_ecc_errors'
finish
