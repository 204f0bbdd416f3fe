# What check-rdma tests in CI, on host 0.
# shellcheck shell=sh

# ---- health: a real port, without counters/ ----
check 'soft-RoCE has no counters folder' [ ! -e /sys/class/infiniband/rxe0/ports/1/counters ]
epx-health --nvml none --json > /tmp/health.json 2>&1
check 'a port without counters folder is OK by its hw_counters, exit code 0' [ $? = 0 ]
check 'its verdict is OK' has '"verdict": "OK"' /tmp/health.json
check 'its device was opened for events' lacks 'events of ports' /tmp/health.json
check 'events are counted by port' has 'async_port_err' /tmp/health.json
if ! command -v survive > /dev/null; then
    echo 'skipped: transports over RDMA: this build has no UCX'
    return
fi

# ---- ranks of one host, the other host beside: conformance by kind ----
far 'export UCX_TLS=ud,self; some ring_dropless pooled_wave_spill ragged_rank_fair ragged' > /tmp/ud &
ud=$!
(export UCX_TLS=rc,self && some pooled_wave_spill ragged_rank_fair ring_dropless ring) > /tmp/rc
wait $ud
check 'something of every suite over UCX_TLS=rc,self' passes /tmp/rc 19
check 'something of every suite over UCX_TLS=ud,self' passes /tmp/ud 19

# ---- ranks on both hosts ----
# apart TLS TESTS COUNT NAME
apart() {
    far "export UCX_TLS=$1; cross 1 $2" > /tmp/there &
    there=$!
    (export UCX_TLS="$1" && cross 0 "$2") > /tmp/here
    wait $there
    check "$4, over UCX_TLS=$1: ranks here" passes /tmp/here "$3"
    check "$4, over UCX_TLS=$1: ranks there" passes /tmp/there "$3"
}
apart rc,self both 4 'every transport from host to host'
apart ud,self both 4 'every transport from host to host'
apart rc,self,sm cases 1 'near peers by stores, far ones by puts'

lost() { /bin/tc -s qdisc show dev eth1 | grep -q 'dropped [1-9]'; }
weather delay 2ms loss 5%
far 'weather delay 2ms loss 5%'
apart rc,self hand 3 '2 ms of delay and 5 % of loss'
apart ud,self hand 3 '2 ms of delay and 5 % of loss'
check 'packets were lost' lost
weather
far 'weather'

# ---- a port that goes down and comes back in the middle of traffic ----
# Connections are set up over TCP here: by ud, rc's own way, UCX ends the process whose port goes down.
far 'epx-health --nvml none --watch --interval 0.5 --seconds 300 --history /tmp/samples > /tmp/watch 2>&1 &
    watcher=$!
    echo $watcher > /tmp/watcher
    wait $watcher
    echo "code $?" >> /tmp/watch' &
exchange flap rc_verbs,tcp:aux,self 29600
check 'ranks of two hosts exchange' has 'first step' /tmp/flap.0
check 'samples are kept' there "until_line '\"state\": 4' /tmp/samples"
far 'weather loss 100%; sleep 1; weather'
sleep 2
check 'a second of silence is survived' lacks 'EPX_ERR|code' /tmp/flap.0
began=$(far 'ip link set eth1 down; date +%s')
here=$(date +%s)
check 'a sample has the port down' there "until_line '\"state\": 1' /tmp/samples"
check 'a port that is down is CORDON' there "until_line 'rxe0/1  CORDON  .*is not active' /tmp/watch"
# RC asks again for seconds: a short absence would be survived, and nobody be told.
check 'ranks here are told while it is down' until_line EPX_ERR /tmp/flap.0
check 'a rank there is told while it is down' there 'until_line EPX_ERR /tmp/flap.2'
far 'ip link set eth1 up'
check 'ranks name those of the other host in time, and go on without them' goes_on flap "$here" "$began"
check 'a port that came back is a flap' there "until_line 'rxe0/1 +WATCH +.*flap: went down and came back once' /tmp/watch"
check 'after a flap the watcher ends with 0: keep using it' \
    there 'kill -TERM $(cat /tmp/watcher); until_line "^code 0" /tmp/watch'
# Down and up between two samples: only the event, or the port's own counter, tells.
far '(epx-health --nvml none --watch --interval 5 --seconds 60 --history /tmp/more; echo "code $?") > /tmp/events 2>&1 &'
check 'a second watcher has begun' there "until_line '\"state\": 4' /tmp/more"
far 'ip link set eth1 down; ip link set eth1 up'
check 'a flap shorter than the interval is seen by its event' there "until_line '\"async_port_err\": [1-9]' /tmp/more"
check 'and is called a flap' there "until_line flap /tmp/events"

# ---- a link that is cut and stays so ----
exchange cut ud,self 29601
check 'ranks of two hosts exchange over ud' has 'first step' /tmp/cut.0
began=$(far 'weather loss 100%; date +%s')
here=$(date +%s)
weather loss 100%
check 'a cut: ranks name those of the other side in time, and go on without them' goes_on cut "$here" "$began"
weather
far weather
