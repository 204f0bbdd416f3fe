# Slurm itself: a controller and a node of this test's own, without PMIx and with it where Slurm has it.
# shellcheck shell=bash source=tests/support/shell.sh
. "$(dirname "$0")/../support/shell.sh"
skip() {
    echo "$1"
    exit 77
}
[ -z "${SANITIZE:-}" ] || skip 'the sanitizers look at ranks that are threads'
"$bin/epx-info" -b | grep -Eq '^ucx +yes' || skip 'this build has no UCX'
export PATH=$PATH:/usr/sbin
for program in slurmctld slurmd srun; do command -v $program > /dev/null || skip "no $program here"; done
[ "$(id -u)" = 0 ] || skip 'slurmd is started by root alone'
folder=$(mktemp -d)
daemons=()
# shellcheck disable=SC2317
clean() {
    kill "${daemons[@]}"
    wait
    rm -rf "$folder" "$out" "$err"
} 2> /dev/null
trap clean EXIT
port() { python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'; }
host=$(hostname -s)
mkdir -p "$folder/state" "$folder/spool"
cat > "$folder/slurm.conf" << END
ClusterName=epx
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$(port)
SlurmdPort=$(port)
AuthType=auth/none
CredType=cred/none
SlurmUser=root
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
MpiDefault=none
ReturnToService=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc)
PartitionName=all Nodes=$host Default=YES State=UP OverSubscribe=YES
END
export SLURM_CONF=$folder/slurm.conf
slurmctld -D > "$folder/slurmctld.log" 2>&1 &
daemons+=($!)
slurmd -D > "$folder/slurmd.log" 2>&1 &
daemons+=($!)
for ((i = 0; i < 100; i++)); do
    sinfo -h -o %T 2> /dev/null | grep -q '^idle' && break
    sleep 0.2
done
sinfo -h -o %T 2> /dev/null | grep -q '^idle' || skip "Slurm does not start here: $(tail -n 1 "$folder/slurmd.log") $(tail -n 1 "$folder/slurmctld.log")"

export UCX_HANDLE_ERRORS=none UCX_LOG_LEVEL=fatal EPX_WIRE=assignment
losses() { grep -o '"loss": *[0-9.e+-]*' "$1" | head -n 3; }
run epx-train --preset tiny --ranks 4 --steps 2 --metrics "$folder/threads"
expect_code 0
for mpi in none pmix; do
    srun --mpi=list 2>&1 | grep -qw $mpi || { echo "Slurm has no $mpi here" && continue; }
    last="srun --mpi=$mpi"
    timeout -k 5 100 srun --mpi=$mpi -n 4 --overcommit "$bin/epx-train" --preset tiny --steps 2 --metrics "$folder/$mpi" > "$out" 2> "$err"
    code=$?
    expect_code 0
    expect_out 'on fabric ucx'
    checks=$((checks + 1))
    [ -s "$folder/$mpi" ] && [ "$(losses "$folder/threads")" = "$(losses "$folder/$mpi")" ] || wrong 'other losses than threads'
done
finish
