#!/bin/sh
# The first and only process of each of check-rdma's two machines, hosts 0 and 1 (epx_host= of the kernel's command line).
# eth0 joins them for control: host 1 carries out what comes to its port 7000 (far in lib.sh), the hub of comms is there.
# eth1 is the network under test, with soft-RoCE (rxe0) on it.
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /tmp
mount -t tmpfs tmpfs /dev/shm
for module in $(cat /modules/order); do
    insmod "/modules/$module.ko" 2> /tmp/insmod || { echo "$module: " && cat /tmp/insmod; }
done
host=$(sed -n 's/.*epx_host=\([01]\).*/\1/p' /proc/cmdline)
for interface in all default; do echo 0 > /proc/sys/net/ipv6/conf/$interface/accept_dad; done
ip link set lo up
for i in 0 1; do
    ip addr add "10.$i.0.$((host + 1))/24" dev eth$i
    ip link set eth$i mtu 4200
    ip link set eth$i up
done
rdma link add rxe0 type rxe netdev eth1
ulimit -l unlimited 2> /dev/null
cd / || exit
if [ "$host" = 1 ]; then
    exec nc -ll -p 7000 -e /bin/sh
fi
. /lib.sh
echo "kernel $(cat /proc/sys/kernel/osrelease), rxe0 $(cat /sys/class/infiniband/rxe0/ports/1/state)"
check 'the other host answers' until_far
# A part of all of conformance is asked for alone.
[ "$(cat /part)" != 1/1 ] || . /some.sh
[ ! -e /all.sh ] || . /all.sh
echo 'all was tried'
poweroff -f
