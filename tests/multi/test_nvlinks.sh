#!/bin/bash
# epx-health and NVLinks of an H200: what NVML said of a healthy machine (two H200, driver 580, both GPUs having
# just exchanged rows), played back by a made-up library; and the same machine with faults.
# shellcheck source=tests/support/shell.sh
. tests/support/shell.sh

fake=$(mktemp -d)
trap 'rm -rf "$fake" "$out" "$err"' EXIT
mkdir "$fake/none"
nvml=$TEST_BUILD/tests/plugins/fake_nvml.so
export FAKE_NVML=$fake/nvml

# Of each link: corrected errors before, how many more a second later; CRC errors of its lanes, likewise.
links=("4275:10:285:0 1702:4:414:0 2967:5:285:0 2688:16:326:0 2459:2:398:0 3659:9:291:0 856:2:398:0 569:0:378:0 1659:8:481:0
        989:8:350:0 2621:6:464:0 1249:2:348:0 2537:8:360:0 1447:0:433:0 668:3:351:0 1864:6:281:0 2575:8:454:0 2050:8:380:0"
       "2757:7:401:0 3189:12:432:0 1499:6:424:0 1308:0:507:0 2015:6:405:0 2470:6:473:0 1766:5:505:0 2472:4:395:0 545:3:373:2
        1187:2:424:0 1403:3:462:0 3944:6:492:0 428:0:281:1 681:4:449:0 1578:2:447:0 1129:3:421:0 3197:7:300:0 2194:6:346:0")

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
json "($(of GPU0/nvlink3 nvlink_ecc_errors)[\"value\"], $(of GPU0/nvlink3 nvlink_ecc_errors)[\"increments\"]) == (2704, 16)"
json "($(of GPU1/nvlink8 nvlink_crc_lane_errors)[\"value\"], $(of GPU1/nvlink8 nvlink_crc_lane_errors)[\"increments\"]) == (375, 2)"
json "($(of GPU1/nvlink8 nvlink_mbytes_per_s)[\"value\"], $(of GPU1/nvlink8 nvlink_version_code)[\"value\"]) == (26562, 6)"
json "$(of GPU1/nvlink8 nvlink_rcv_errors)[\"code\"] == 3 and $(of GPU1 gpu_recovery_action)[\"verdict\"] == \"OK\""

# One link that sends again and again and one whose GPU is to be reset are out. One that corrects 2,000 errors while its
# neighbours correct at most 16, and one at half the speed, are to be watched. All others are OK.
look 's/^field 1 161 8 0 0/field 1 161 8 0 900/; s/^field 0 230 0 0 0/field 0 230 0 0 1/
      s/^errors 0 3 4 0 2704/errors 0 3 4 0 4688/; s/^field 1 164 2 0 26562/field 1 164 2 0 13281/'
expect_code 1
expect_out '^  GPU1/nvlink8 +CORDON +nvlink_replays: 900 more in [0-9.]+ s, counted as if it were 6 min: 9e\+03 an hour'
expect_out '^  GPU0 +CORDON +the driver wants a reset of the GPU$'
expect_out '^  GPU0/nvlink3 +WATCH +nvlink_ecc_errors: 2000 more, over 100 times'
expect_out '^  GPU1/nvlink2 +WATCH +is slower than the other links: 13281 MB/s, they have 26562$'
expect_out '^  34 links OK$'
expect_out '^  corrected by the links themselves: nvlink_crc_lane_errors 3 more on 36 links, at most 2 on one; nvlink_ecc_errors'
finish
