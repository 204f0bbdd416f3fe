#!/bin/bash
# Real ports, events and RDMA traffic without RDMA hardware: Debian's kernel in qemu (no kvm is needed) with soft-RoCE on
# a dummy interface.
#
#   mk/check-rdma.sh BUILD_FOLDER
#
# Inside, epx-health watches rxe0 while its interface goes down and up, and ranks in processes of their own run tests of
# conformance over UCX's rc and ud. RDMA_TRANSPORTS=all: they train too, and run all tests that fit into RDMA_TIMEOUT.
# Ends with "N passed, N failed".
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
mkdir -p "$root"/{bin,proc,sys,dev,tmp,run,data,etc/libibverbs.d,modules} "$root/dev/shm" "$root$libs/libibverbs" "$root$libs/ucx"

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
for applet in sh mount insmod ls sleep ip mkdir cat grep poweroff kill cmp seq head tail tr wc date; do
    ln -sf busybox "$root/bin/$applet"
done
for program in "$(command -v rdma)" "$bin"/epx-health "$bin"/epx-train "$bin"/epx-info; do add "$program" /bin; done
add $libs/libibverbs/librxe-rdmav34.so $libs/libibverbs
cp /etc/libibverbs.d/rxe.driver "$root/etc/libibverbs.d/"
cp data/*.txt "$root/data/"
ucx=no
if "$bin/epx-info" -b | grep -Eq '^ucx +yes'; then
    ucx=${RDMA_TRANSPORTS:-some}
    add "$build/tests/processes-conformance" /bin
    for module in $libs/ucx/libuc*.so.0; do
        case $module in *cuda* | *rocm* | *xpmem* | *knem*) ;; *) add "$module" $libs/ucx ;; esac
    done
fi
for module in net/ipv4/udp_tunnel net/ipv6/ip6_udp_tunnel crypto/crc32_generic drivers/infiniband/core/ib_core \
    drivers/infiniband/core/ib_uverbs drivers/infiniband/core/ib_cm drivers/infiniband/core/iw_cm \
    drivers/infiniband/sw/rxe/rdma_rxe drivers/net/dummy; do
    [ ! -e "$modules/$module.ko" ] || cp "$modules/$module.ko" "$root/modules/"
done
cp mk/check-rdma-init.sh "$root/init"
chmod +x "$root/init"
echo "$ucx" > "$root/ucx"
(cd "$root" && find . | cpio --quiet -o -H newc | gzip -1) > "$work/initramfs.gz"

# ---- the machine ----
console=$work/console.log
timeout -k 5 "${RDMA_TIMEOUT:-400}" qemu-system-x86_64 -accel tcg -cpu Nehalem -m 2048 -smp 2 -nographic -no-reboot -nic none \
    -kernel "$work/kernel/boot/vmlinuz-$version" -initrd "$work/initramfs.gz" \
    -append 'console=ttyS0 quiet panic=1' < /dev/null > "$console" 2>&1 || true

passed=$(grep -ac '^ok - ' "$console" || true)
failed=$(grep -ac '^not ok - ' "$console" || true)
grep -a '^\(not \)\?ok - \|^skipped' "$console" | tr -d '\r'
grep -aq '^all was tried' "$console" || { failed=$((failed + 1)) && echo 'the machine did not come to the end of its tests'; }
[ "$failed" = 0 ] || { echo "-- the end of $console" && tail -n 60 "$console"; }
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
