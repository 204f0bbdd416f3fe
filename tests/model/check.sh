#!/bin/bash
# Checks the model of how slots are shared, for 2 and 3 ranks, and that of orders of memory, and that their mutants are
# refuted.
#   check.sh [FOLDER]    writes there; exits 1 when a check comes out wrong, 3 where there is no spin
set -u
here=$(cd "$(dirname "$0")" && pwd)
work=${1:-$(mktemp -d)}
mkdir -p "$work" && cd "$work" || exit 1
work=$PWD
rm -f wrong
command -v spin > /dev/null || { echo "model: spin is not installed: tools/setup.sh ci"; exit 3; }

# check WANTED NAME DEFINES...: builds and runs one verifier in a folder of its own; WANTED is holds or refuted.
check() {
    local wanted=$1 name=$2 got
    shift 2
    rm -rf "${name:?}" && mkdir "$name" && cd "$name" || return 1
    spin -a "$@" "$here/slots.pml" > spin.log 2>&1 && ${CC:-cc} -O2 -w -DSAFETY -DCOLLAPSE -DMEMLIM=3000 -o pan pan.c >> spin.log 2>&1 ||
        { cat spin.log; echo "model: $name: could not be built"; return 1; }
    timeout 240 ./pan -m200000 > "$name.log" 2>&1
    if grep -q 'errors: [1-9]' "$name.log"; then got=refuted
    elif grep -q 'errors: 0' "$name.log" && ! grep -qE 'too small|interrupted|out of memory|reached -DMEMLIM' "$name.log"; then got=holds
    else got='not decided'; fi
    echo "model: $name: $got, $(sed -n 's/ *\([0-9.e+]*\) states, stored.*/\1/p' "$name.log") states"
    [ "$got" = "$wanted" ] || { grep -E 'error|pan:' "$name.log"; echo "model: $name: should be: $wanted"; return 1; }
}

# run ARGUMENT...: check, beside as many others as there are processors.
running=0
run() {
    if [ $running -ge "$(nproc)" ]; then
        wait -n
        running=$((running - 1))
    fi
    (check "$@" || touch "$work/wrong") &
    running=$((running + 1))
}

run holds 2-ranks-depth-2 -DN=2 -DDEPTH=2 -DUSES=3
run holds 2-ranks-depth-1 -DN=2 -DDEPTH=1 -DUSES=3
run holds 3-ranks -DN=3 -DDEPTH=1 -DUSES=2 -DCALM
run holds 3-ranks-recovery -DN=3 -DDEPTH=1 -DUSES=1
for mutant in NO_FENCE NO_SIGNAL EARLY_REUSE OLD_MEMORY AT_LEAST_OLD; do
    run refuted "2-ranks-$mutant" -DN=2 -DDEPTH=1 -DUSES=2 -D$mutant
done
wait

# Orders of memory: one verifier for all; of each litmus mutant 0 is the code, each other leaves one order out.
mutants=([1]=2 [2]=4 [3]=2 [4]=4 [5]=2 [6]=4)
rm -f pan*
spin -a "$here/orders.pml" > spin.log 2>&1 && ${CC:-cc} -O1 -w -DSAFETY -o pan pan.c >> spin.log 2>&1 || { cat spin.log; exit 1; }
for litmus in "${!mutants[@]}"; do
    refuted=0
    for ((mutant = 0; mutant <= mutants[litmus]; mutant++)); do
        rm -f ./*.trail
        LITMUS=$litmus MUTANT=$mutant timeout 60 ./pan > orders.log 2>&1
        found=$(sed -n 's/.*errors: \([0-9]*\).*/\1/p' orders.log)
        if [ "$mutant" = 0 ] && [ "$found" != 0 ]; then
            cat orders.log && echo "model: orders $litmus: does not hold" && touch wrong
        elif [ "$mutant" != 0 ] && [ "${found:-0}" = 0 ]; then
            echo "model: orders $litmus: mutant $mutant is not refuted" && touch wrong
        elif [ "$mutant" != 0 ]; then
            refuted=$((refuted + 1))
        fi
    done
    echo "model: orders $litmus: $refuted of ${mutants[litmus]} mutants refuted"
done
[ ! -e wrong ]
