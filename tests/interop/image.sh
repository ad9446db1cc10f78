#!/usr/bin/env bash
# Usage: image.sh FOLDER PEER LINGER. Makes FOLDER/kernel and FOLDER/initramfs, all from Debian packages: the kernel is
# downloaded once, the programs are those installed here. Nothing is installed.
# Exit: 77 with the reason when the kernel cannot be had, 1 on a fault of our own.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$1
peer=$2
linger=$3

# rxe needs a CRC-32 and does not say so.
modules=(virtio_pci virtio_net crc32_generic crc32c_generic rdma_rxe sch_netem)
programs=(ibv_rc_pingpong rdma tc)
for verb in write read send atomic; do programs+=("ib_${verb}_bw" "ib_${verb}_lat"); done

# The compressed payload of a bzImage lies where its boot header says (Documentation/arch/x86/boot.rst).
unpack_vmlinux() {
  local image=$1 setup_sectors offset length
  read -r setup_sectors < <(od -An -tu1 -j $((0x1f1)) -N 1 "$image")
  read -r offset length < <(od -An -tu4 -j $((0x248)) -N 8 "$image")
  # Four bytes of length trail the stream, so that xz does not count.
  { tail -c +$(((setup_sectors + 1) * 512 + offset + 1)) "$image" | head -c "$length" | xz -dc --single-stream; } 2> /dev/null || true
}

fetch_kernel() {
  local package part=$folder/kernel.part
  package=$(apt-cache depends linux-image-amd64 2> /dev/null | sed -n 's/^ *Depends: *\(linux-image-[0-9][^ ]*\)$/\1/p' | head -1)
  [ -n "$package" ] || skip "apt knows no linux-image-amd64: run apt-get update, on Debian for amd64"
  rm -rf "$part"
  mkdir -p "$part"
  (cd "$part" && timeout 240 apt-get download -qq -o APT::Sandbox::User=root "$package") > "$folder/download.log" 2>&1 ||
    skip "apt-get cannot download $package ($(tail -1 "$folder/download.log")): run apt-get update, check the network"
  dpkg-deb --fsys-tarfile "$part"/*.deb |
    tar -x -C "$part" --wildcards './boot/vmlinuz-*' './lib/modules/*/kernel/drivers/infiniband/*' \
      './lib/modules/*/kernel/drivers/net/*' './lib/modules/*/kernel/drivers/virtio/*' './lib/modules/*/kernel/crypto/*' \
      './lib/modules/*/kernel/lib/*' './lib/modules/*/kernel/net/*'
  rm "$part"/*.deb
  # An unpacked kernel boots twice as fast under emulation; one packed otherwise than by xz boots as it is.
  unpack_vmlinux "$part"/boot/vmlinuz-* > "$part/kernel"
  [ -s "$part/kernel" ] || cp "$part"/boot/vmlinuz-* "$part/kernel"
  mkdir "$part/modules"
  add_modules "$part" "${modules[@]}"
  rm -rf "$part/boot" "$part/lib"
  rm -rf "$folder/kernel"
  mv "$part" "$folder/kernel"
}

# Copies modules behind those they depend on. What is no file is built in.
add_modules() {
  local root=$1 name file
  shift
  for name in "$@"; do
    file=$(find "$root/lib/modules" -name "${name//[_-]/[_-]}.ko*" | head -1)
    [ -n "$file" ] || continue
    [ -e "$root/modules/$name.ko" ] && continue
    case $file in
      *.xz) xz -dc "$file" > "$root/modules/$name.ko" ;;
      *) cp "$file" "$root/modules/$name.ko" ;;
    esac
    # shellcheck disable=SC2046 # one word per module
    add_modules "$root" $(tr '\0' '\n' < "$root/modules/$name.ko" | sed -n 's/^depends=//p' | tr ',' ' ')
    echo "$name.ko" >> "$root/modules/order"
  done
}

# Copies files and the libraries they are linked to, each to the place where it is here.
add_files() {
  local root=$1 file
  shift
  for file in "$@" $(ldd "$@" 2> /dev/null | grep -o '/[^ :]*' | sort -u); do
    mkdir -p "$root$(dirname "$file")"
    cp -L --update "$file" "$root$file"
  done
}

make_initramfs() {
  local root=$folder/root name
  rm -rf "$root"
  mkdir -p "$root"/{bin,dev,proc,sys,etc/libibverbs.d}
  cp "$here/init" "$root/init"
  chmod +x "$root/init"
  cp "$(command -v busybox)" "$root/bin/busybox"
  cp -r "$folder/kernel/modules" "$root/modules"
  for name in "${programs[@]}"; do add_files "$root" "$(command -v "$name")"; done
  add_files "$root" "$peer"
  ln -s "$peer" "$root/bin/peer"
  add_files "$root" "$linger"
  # Busybox's shell would take its own tc, which knows no netem.
  ln -s "$(command -v tc)" "$root/bin/full-tc"
  add_files "$root" /usr/lib/*/libibverbs/librxe-rdmav*.so
  cp /etc/libibverbs.d/rxe.driver "$root/etc/libibverbs.d/"
  (cd "$root" && find . | busybox cpio -o -H newc 2> /dev/null) > "$folder/initramfs"
}

mkdir -p "$folder"
[ -s "$folder/kernel/kernel" ] && [ -s "$folder/kernel/modules/order" ] || fetch_kernel
make_initramfs
