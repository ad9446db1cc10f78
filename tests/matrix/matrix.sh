#!/usr/bin/env bash
# matrix.sh 12|13 [FOLDER]: HEAD of this tree on that Debian, from an empty root, by steps.sh. FOLDER (build/roots)
# keeps the empty root and the packages between runs; the root in which the steps run is made anew each time, and left.
set -euo pipefail
tree=$(cd "$(dirname "$0")/../.." && pwd)
release=${1:-}
case $release in
  12) suite=bookworm ;;
  13) suite=trixie ;;
  *)
    echo "matrix.sh '$release': use 12 or 13" >&2
    exit 2
    ;;
esac
mkdir -p "${2:-$tree/build/roots}"
folder=$(cd "${2:-$tree/build/roots}" && pwd)
PATH=$PATH:/usr/sbin:/sbin

skip() {
  echo "SKIPPED: $*" >&2
  exit 77
}

[ "$(id -u)" -eq 0 ] || skip "only root makes a Debian in a folder: run this as root"
command -v debootstrap >/dev/null || skip "debootstrap is missing; install Debian's debootstrap and git"
unshare -m -p -f true 2>/dev/null || skip "no mount namespace may be made here: allow it to root"
git -C "$tree" rev-parse -q --verify HEAD >/dev/null || skip "$tree is no git checkout: clone the repository"

# One run per release at a time.
exec 9>"$folder/.lock-$release"
flock 9
empty=$folder/debian-$release-empty
root=$folder/debian-$release
if [ ! -e "$empty" ]; then
  rm -rf "$empty.new"
  debootstrap --variant=minbase "$suite" "$empty.new" >"$folder/debootstrap-$release.log" 2>&1 ||
    { tail "$folder/debootstrap-$release.log" >&2; echo "FAILED: debootstrap $suite" >&2; exit 1; }
  mv "$empty.new" "$empty"
fi
rm -rf --one-file-system "$root"
cp -a "$empty" "$root"
cp /etc/resolv.conf "$root/etc/resolv.conf"
git clone -q --no-hardlinks "$tree" "$root/root/gdx"
mkdir -p "$folder/packages-$release"

# Mounts of its own, which end with it, and so do the processes in it.
export root packages=$folder/packages-$release
exec unshare -m -p -f --kill-child bash -c '
  mount --make-rprivate /
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys"
  mount --rbind /dev "$root/dev"
  mount --bind "$packages" "$root/var/cache/apt/archives"
  mkdir -p "$packages/partial"
  exec chroot "$root" /usr/bin/env -i HOME=/root TERM=dumb PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /root/gdx/tests/matrix/steps.sh'
