#!/bin/bash
# Real ports, events and RDMA traffic without RDMA hardware: Debian's kernel in qemu (no kvm is needed) with soft-RoCE.
#
#   mk/check-rdma.sh BUILD_FOLDER
#
# Two machines are two hosts, joined by socket network devices, with a port each; mk/rdma/some.sh says what is tested.
# RDMA=all: all of conformance over rc and over ud besides, for hours; RDMA_PART=I/N: that part of it alone, as the runner
# (tests/support/alone) cuts it. Ends with "N passed, N failed".
set -eu
build=$(cd "$1" && pwd)
work=$build/rdma
bin=$build/bin
mkdir -p "$work"

# ---- Debian's kernel, from its own package, fetched once ----
fetch_kernel() {
    local package
    package=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9][^ ]*\).*/\1/p' | head -n 1)
    [ -n "$package" ] || { echo 'check-rdma: apt knows no linux-image-amd64: this needs Debian on x86-64' >&2 && exit 1; }
    (cd "$work" && rm -f linux-image-*.deb && apt-get -q download "$package" && rm -rf kernel && dpkg -x linux-image-*.deb kernel)
}
[ -d "$work/kernel/lib/modules" ] || fetch_kernel
version=$(ls "$work/kernel/lib/modules")
modules=$work/kernel/lib/modules/$version/kernel

# ---- the file system ----
root=$work/root
libs=/usr/lib/x86_64-linux-gnu
rm -rf "$root"
mkdir -p "$root"/{bin,proc,sys,dev,tmp,run,etc/libibverbs.d,modules} "$root/dev/shm" "$root$libs/libibverbs" \
    "$root$libs/ucx"

# add FILE FOLDER: with the libraries it needs.
add() {
    local library
    cp -L "$1" "$root$2/"
    for library in $(ldd "$1" | grep -o '/[^ ]*'); do
        mkdir -p "$root$(dirname "$library")"
        [ -e "$root$library" ] || cp -L "$library" "$root$library"
    done
}
cp /bin/busybox "$root/bin/"
for applet in sh mount insmod ls sleep ip mkdir cat grep poweroff kill cmp seq head tail tr wc date sed nc timeout rm cp mv cut env; do
    ln -sf busybox "$root/bin/$applet"
done
for program in "$(command -v rdma)" "$(command -v tc)" "$bin/epx-health"; do add "$program" /bin; done
add $libs/libibverbs/librxe-rdmav34.so $libs/libibverbs
cp /etc/libibverbs.d/rxe.driver "$root/etc/libibverbs.d/"
if "$bin/epx-info" -b | grep -Eq '^ucx +yes'; then
    add "$build/tests/processes-conformance" /bin
    for module in $libs/ucx/libuc*.so.0; do
        case $module in *cuda* | *rocm* | *xpmem* | *knem*) ;; *) add "$module" $libs/ucx ;; esac
    done
    "${CC:-cc}" -std=c11 -D_GNU_SOURCE -O1 -Iinclude -o "$work/survive" examples/survive.c -L"$build/lib" -lepx \
        -Wl,-rpath,"$build/lib"
    add "$work/survive" /bin
    if [ "${RDMA:-some}" = all ]; then # with OpenBLAS, for which others need not wait
        add "$bin/epx-train" /bin
        mkdir -p "$root/data"
        cp data/*.txt "$root/data/"
    fi
    # Tests of plug-ins call a compiler, which there takes what was compiled here: the word behind -o is the output.
    mkdir -p "$root/build/tests/plugins"
    cp "$build"/tests/plugins/*.so "$root/build/tests/plugins"
    "${CC:-cc}" -std=c11 -O2 -fPIC -shared -Wl,-z,defs -Iinclude -o "$root/build/worst_case.so" examples/plugin/worst_case.c
    printf '#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\ncp /build/worst_case.so "$2"\n' > "$root/build/cc"
    chmod +x "$root/build/cc"
fi
for module in net/ipv4/udp_tunnel net/ipv6/ip6_udp_tunnel crypto/crc32_generic drivers/infiniband/core/ib_core \
    drivers/infiniband/core/iw_cm drivers/infiniband/core/ib_cm drivers/infiniband/core/ib_uverbs \
    drivers/infiniband/sw/rxe/rdma_rxe drivers/net/dummy net/sched/sch_netem \
    drivers/virtio/virtio_ring drivers/virtio/virtio drivers/virtio/virtio_pci_modern_dev drivers/virtio/virtio_pci_legacy_dev \
    drivers/virtio/virtio_pci net/core/failover drivers/net/net_failover drivers/net/virtio_net; do
    [ -e "$modules/$module.ko" ] || continue
    cp "$modules/$module.ko" "$root/modules/"
    echo "${module##*/}" >> "$root/modules/order"
done
cp mk/rdma/init.sh "$root/init"
cp mk/rdma/lib.sh mk/rdma/some.sh "$root/"
[ "${RDMA:-some}" != all ] || cp mk/rdma/all.sh "$root/"
chmod +x "$root/init"
limit=${RDMA_TIMEOUT:-400} memory=2048
[ "${RDMA:-some}" = some ] || limit=${RDMA_TIMEOUT:-80000} memory=7168
echo "${RDMA_PART:-1/1}" > "$root/part"
echo "$limit" > "$root/limit"
(cd "$root" && find . | cpio --quiet -o -H newc) > "$work/initramfs"

# ---- two machines, joined by two cables ----
listens() { grep -q "^ *[0-9]*: [0-9A-F]*:$(printf %04X "$1") 00000000:0000 0A" /proc/net/tcp; }
# machine HOST PORT0 PORT1 HOW: HOW is how it has its end of a cable, "listen" or "connect".
machine() {
    local args=() i ports=("$2" "$3")
    for i in 0 1; do
        args+=(-netdev "socket,id=n$i,$4=127.0.0.1:${ports[i]}"
            -device "virtio-net-pci,netdev=n$i,mac=52:54:00:00:0$i:0$1,romfile=")
    done
    exec timeout -k 5 "$limit" qemu-system-x86_64 -accel tcg -cpu Nehalem -m "$memory" -smp 1 -nographic -no-reboot \
        "${args[@]}" -kernel "$work/kernel/boot/vmlinuz-$version" -initrd "$work/initramfs" \
        -append "console=ttyS0 quiet panic=1 mitigations=off epx_host=$1" < /dev/null > "$work/console.$1" 2>&1
}
port0=$((20000 + $$ % 5000 * 2))
while listens $port0 || listens $((port0 + 1)); do port0=$((port0 + 2)); done
machine 0 $port0 $((port0 + 1)) listen &
first=$!
for ((i = 0; i < 100; i++)); do
    if listens $port0 && listens $((port0 + 1)); then break; fi
    sleep 0.1
done
machine 1 $port0 $((port0 + 1)) connect &
second=$!
# Lines as they come.
tail -n +1 -f --pid=$first "$work/console.0" | sed -nu 's/\r$//; /^\(not \)\?ok - \|^skipped/p' &
shown=$!
wait $first || true
wait $shown || true
kill $second 2> /dev/null || true
wait $second || true

console=$work/console.0
passed=$(grep -ac '^ok - ' "$console" || true)
failed=$(grep -ac '^not ok - ' "$console" || true)
grep -aq '^all was tried' "$console" || { failed=$((failed + 1)) && echo 'the machines did not come to the end of their tests'; }
[ "$failed" = 0 ] || { echo "-- the end of $console" && tail -n 60 "$console"; }
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
