#!/bin/bash
# Runs test programs and test scripts, and ends with one line: "N passed, N failed".
#
#   mk/run-tests.sh RUNNER... SCRIPT.sh...
#
# Programs run one after the other, each with TEST_JOBS of its tests at a time: most of them wait for time-outs, where no
# sanitizer keeps them busy. Scripts that start such programs, or look at the clock, run alone. Of the others TEST_LANES
# run beside each other.
#
# A runner is a Criterion program; its own record (TAP) is what is counted. A runner that dies or hangs leaves none
# and counts as failed; one test may take a quarter of its time. A report of a sanitizer counts too: some come after
# the last test, where Criterion is blind. ThreadSanitizer goes on after a race, and tests capture what ranks print: its
# reports are files of their own, and any of them fails the program or script that it came from.
# A script counts as one test; exit 77 says that it was skipped, and why on its last line.
set -u
passed=0 failed=0 skipped=0 bad=()
logs=$TEST_BUILD/tests/log
mkdir -p "$logs"
export TEST_BUILD TEST_CC SANITIZE
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=1}
tsan_options="halt_on_error=0 ${TSAN_OPTIONS:-}"
limit=(timeout -k 10 "${TEST_TIMEOUT:-600}")
# UCX hangs itself into calls that threads make at their very end, when ThreadSanitizer knows them no more: it crashes.
[ "${SANITIZE:-}" != thread ] || export UCX_MEM_EVENTS=n
jobs=${TEST_JOBS:-$([ -n "${SANITIZE:-}" ] && echo 2 || echo 4)}
# ThreadSanitizer of older compilers cannot start where the kernel spreads addresses wider than this.
if [ "${SANITIZE:-}" = thread ] && [ "$(cat /proc/sys/vm/mmap_rnd_bits 2> /dev/null || echo 0)" -gt 28 ]; then
    limit+=(setarch -R)
fi
reports='ERROR: (Address|Leak)Sanitizer|: runtime error: '

# fail WHAT: counts one failure and keeps its name for the end.
fail() {
    failed=$((failed + 1))
    bad+=("$1")
}

# name_races NAME: where ThreadSanitizer puts the reports of what is started from here on.
name_races() {
    rm -f "$logs/$1.race".*
    export TSAN_OPTIONS="$tsan_options log_path=$logs/$1.race"
}

# look_for_races NAME
look_for_races() {
    local found=("$logs/$1.race".*)
    [ -e "${found[0]}" ] || return 0
    head -n 100 "${found[@]}"
    fail "$1: ThreadSanitizer reported $(cat "${found[@]}" | grep -c '^SUMMARY') times (${found[0]} ...)"
}

run_program() {
    local name tap=$logs/$1.tap log=$logs/$1.log rc ok not_ok skip
    name=$1
    rm -f "$tap"
    name_races "$name"
    # shellcheck disable=SC2086  # TEST_ARGS are words
    "${limit[@]}" "$2" --jobs "$jobs" --timeout "$((${TEST_TIMEOUT:-600} / 4))" --tap="$tap" ${TEST_ARGS:-} 2>&1 | tee "$log"
    rc=${PIPESTATUS[0]}
    look_for_races "$name"
    if [ ! -s "$tap" ]; then
        fail "$name: the runner ended with status $rc and left no record ($log)"
        return
    fi
    skip=$(grep -c '^ok .*# SKIP' "$tap")
    ok=$(($(grep -c '^ok ' "$tap") - skip))
    not_ok=$(grep -c '^not ok ' "$tap")
    passed=$((passed + ok)) skipped=$((skipped + skip))
    while read -r line; do fail "$name: $line"; done < <(grep '^not ok ' "$tap")
    grep '^ok .*# SKIP' "$tap" | sed "s|^ok - |  skipped $name: |; s|# SKIP||"
    if [ "$not_ok" = 0 ] && grep -Eq "$reports" "$log"; then
        fail "$name: a sanitizer reported something ($log)"
    elif [ "$not_ok" = 0 ] && [ "$rc" != 0 ]; then
        fail "$name: the runner ended with status $rc though no test failed ($log)"
    fi
}

name_of() { echo "$1" | tr / -; }
# log_of SCRIPT: where its output is. Beside it, in .end, its status and its seconds.
log_of() { echo "$logs/$(name_of "$1").log"; }

# In a shell of its own, which takes the script along when it is ended.
run_script() {
    local log begin=$SECONDS
    log=$(log_of "$1")
    name_races "$(name_of "$1")"
    "${limit[@]}" bash "$1" > "$log" 2>&1 < /dev/null &
    # shellcheck disable=SC2064  # that process
    trap "kill $!; exit" TERM
    wait $!
    echo "$? $((SECONDS - begin))" > "$log.end.new" && mv "$log.end.new" "$log.end"
}
trap 'kill $(jobs -p) 2> /dev/null; exit 1' INT TERM

# Says how a script has ended, and counts it.
tell_script() {
    local name=$1 log rc seconds
    log=$(log_of "$1")
    read -r rc seconds < "$log.end"
    rm "$log.end"
    echo "-- $name"
    case $rc in
    0) passed=$((passed + 1)) ;;
    77) skipped=$((skipped + 1)) && echo "  skipped $name: $(tail -n 1 "$log")" ;;
    *) cat "$log" && fail "$name: ended with status $rc ($log)" ;;
    esac
    look_for_races "$(name_of "$1")"
    echo "   $seconds s"
}

# tell_ended: of those that are running, whoever has ended.
tell_ended() {
    local script left=()
    for script in "${running[@]}"; do
        if [ -e "$(log_of "$script").end" ]; then tell_script "$script"; else left+=("$script"); fi
    done
    running=("${left[@]}")
}

# start_script SCRIPT LANES: returns when fewer than so many run.
running=()
start_script() {
    rm -f "$(log_of "$1").end"
    run_script "$1" &
    running+=("$1")
    while [ ${#running[@]} -ge "$2" ]; do
        wait -n
        [ $? != 127 ] || break # none is left
        tell_ended
    done
}

beside=()
for test in "$@"; do
    start=$SECONDS
    case $test in
    tests/conformance/*.sh | */test_launch.sh | */test_perf.sh | */test_rep*.sh | */test_survive.sh | */test_sweep.sh)
        start_script "$test" 1
        ;;
    *.sh) beside+=("$test") ;;
    *)
        echo "-- ${test##*/}"
        run_program "${test##*/}" "$test"
        echo "   $((SECONDS - start)) s"
        ;;
    esac
done
for test in "${beside[@]}"; do start_script "$test" "${TEST_LANES:-2}"; done
wait
tell_ended
for test in "${running[@]}"; do fail "$test: its shell was ended from outside"; done

[ $((passed + failed + skipped)) -gt 0 ] || fail 'no test was found'
for line in "${bad[@]}"; do echo "FAILED $line"; done
echo "$passed passed, $failed failed$([ $skipped = 0 ] || echo ", $skipped skipped")"
[ "$failed" = 0 ]
