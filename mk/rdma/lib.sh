# What the tests in check-rdma's machines have in common, on both hosts. A test prints "ok - WHAT" or "not ok - WHAT".
# shellcheck shell=sh

# By the address that a port has from IPv6: with the IPv4 one packets arrive (rcvd_pkts), but UCX 1.13's endpoints see no
# acknowledgement and time out.
export UCX_IB_GID_INDEX=0 UCX_NET_DEVICES=rxe0:1 UCX_HANDLE_ERRORS=none UCX_LOG_LEVEL=error
# An emulated processor: what a test waits for a rank that stays away; the programs that plug-in tests build and look for.
export TEST_WAIT_MS=3000 TEST_CC=/build/cc TEST_BUILD=/build EPX_WIRE=assignment

# check WHAT COMMAND...: its output is shown when it fails. Each says when it was through.
check() {
    what=$1
    shift
    if "$@" > /tmp/output 2>&1; then
        echo "ok - $what ($(cut -d. -f1 /proc/uptime) s)"
    else
        echo "not ok - $what ($(cut -d. -f1 /proc/uptime) s)"
        cat /tmp/output
    fi
}
has() { grep -Eq "$1" "$2" || { cat "$2" && false; }; }
lacks() { ! grep -Eq "$1" "$2" || { cat "$2" && false; }; }
# until_line PATTERN FILE: waits for a line, for a minute at most.
until_line() {
    tries=0
    while ! grep -Eq "$1" "$2" 2> /dev/null; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || { echo "no line with $1 came:" && cat "$2" && return 1; }
        sleep 0.2
    done
}
# far COMMANDS: host 1 carries them out; their output comes back. No longer than far_seconds, where that is set: a host
# that is gone says nothing.
far() { echo ". /lib.sh; $*" | timeout "${far_seconds:-100000}" nc 10.0.0.2 7000; }
# there COMMANDS: the same, and how the last of them ended.
there() {
    far "$*; echo \"so \$?\"" > /tmp/there.out
    grep -v '^so [0-9]*$' /tmp/there.out
    grep -q '^so 0$' /tmp/there.out
}
until_far() {
    tries=0
    while [ "$(far 'echo here' 2> /dev/null)" != here ]; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || return 1
        sleep 0.2
    done
}
# weather HOW...: tc's netem on this host's end of the network under test; without words: fair again.
# busybox has a tc of its own, without netem.
weather() {
    /bin/tc qdisc del dev eth1 root 2> /dev/null
    [ $# = 0 ] || /bin/tc qdisc add dev eth1 root netem "$@" 2>&1
}

# ---- conformance, a process for each rank ----
# suite ARM PATTERN...: "" is every arm.
suite() {
    arm=$1
    shift
    count=$#
    while [ $count -gt 0 ]; do
        set -- "$@" --filter "$1"
        shift
        count=$((count - 1))
    done
    [ -z "$arm" ] || export TEST_ARM="$arm"
    processes-conformance --jobs 1 --timeout 100 "$@" 2>&1
    unset TEST_ARM
}
# some ARM ARM ARM BASIC_ARM: something of every suite that processes can run, with 2 to 4 ranks. Suite scale has 18 ranks,
# corrupt and overlap are for memory of the tests' own and for devices.
some() {
    suite "$1" batches/without_origin 'cases/case03*' plans/destroyed_in_any_order
    suite "$2" failed_route/two_ranks_fail 'call_order/case16*' 'cases/case19*'
    suite "$3" routing/wide_ids 'values/case15*' memory/missing_for_a_plan
    suite "$4" accounting/a_dead_plan_counts_nothing failures/a_rank_that_skips_a_call recovery/again_and_again
    suite '' by_hand/ring comm/two_groups_at_once mismatch/what_may_differ \
        arguments/all_ranks_open_wrongly environment/the_environment_wins 'exact/every_16_bit*' \
        'plugin/a_plugin_that_opens*'
}
# cross HOST WHAT: the ranks of each test are on both hosts, 0 here and 1 and 2 there; WHAT is cases, hand or both.
cross() {
    export TEST_HOST="$1" TEST_ROOT=10.0.0.1:21000
    [ "$2" = hand ] || suite ragged_rank_fair 'cases/case03*'
    export TEST_ROOT=10.0.0.1:22000
    [ "$2" = cases ] || suite '' by_hand/ring by_hand/ragged_fair by_hand/pooled_wave_spill
}
# passes FILE COUNT: so many tests passed by this output of suites, none failed.
passes() {
    grep -v '^epx error' "$1"
    sum=0
    for through in $(sed -n 's/^\([0-9]*\) passed, 0 failed.*/\1/p' "$1"); do sum=$((sum + through)); done
    [ $sum -ge "$2" ] && ! grep -q ' passed, [1-9][0-9]* failed' "$1"
}

# ---- ranks 0 and 1 on host 0, rank 2 on host 1, that exchange until something happens ----
# rank NAME TLS PORT RANK: examples/survive.c; its output goes to /tmp/NAME.RANK, with its exit code at the end.
rank() {
    export EPX_RANK="$4" EPX_WORLD_SIZE=3 EPX_ROOT="10.0.0.1:$3" EPX_TIMEOUT_MS=4000 UCX_TLS="$2" UCX_NET_DEVICES=rxe0:1,eth0
    survive 1000000000 20 > "/tmp/$1.$4" 2>&1
    echo "code $?" >> "/tmp/$1.$4"
}
# exchange NAME TLS PORT: all three, until each has made a step.
exchange() {
    for number in 0 1; do (rank "$1" "$2" "$3" $number) & done
    far "rank $1 $2 $3 2" &
    until_line 'first step' "/tmp/$1.0" && until_line 'first step' "/tmp/$1.1" && there "until_line 'first step' /tmp/$1.2"
}
# ends NAME: the ranks have ended, and rank 2's output is here too.
ends() {
    there "until_line '^code' /tmp/$1.2; cat /tmp/$1.2" > "/tmp/$1.2"
    until_line '^code' "/tmp/$1.0" && until_line '^code' "/tmp/$1.1"
}
# told FILE OTHERS BEGAN: an error names a rank of the other host, within the limit and a second (and one of the clocks).
told() {
    has "^rank .: at [0-9]+ ms: EPX_ERR_(PEER|TIMEOUT): .*rank [$2]" "$1" || return 1
    at=$(sed -n 's/^rank .: at \([0-9]*\)[0-9][0-9][0-9] ms: EPX_ERR.*/\1/p' "$1" | head -n 1)
    echo "after $((at - $3)) s" && [ $((at - $3)) -le 6 ]
}
# goes_on NAME HERE THERE: each side was told of the other, and made steps among those that it still reaches. HERE and
# THERE: when it began by the clock of each host; on a busy machine one of them may lose seconds.
goes_on() {
    ends "$1" && told "/tmp/$1.0" 2 "$2" && told "/tmp/$1.1" 2 "$2" && told "/tmp/$1.2" 01 "$3" &&
        has '^rank 0: 20 steps among 2 ranks were right' "/tmp/$1.0" &&
        has '^rank 1: 20 steps among 2 ranks were right' "/tmp/$1.1" &&
        has '^rank 2: 20 steps among 1 ranks were right' "/tmp/$1.2" && ! grep -h '^code [1-9]' "/tmp/$1".?
}
