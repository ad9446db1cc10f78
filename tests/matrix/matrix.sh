#!/usr/bin/env bash
# matrix.sh 12|13 [STEP...]: HEAD of this tree on that Debian, from an empty root, by steps.sh. build/roots keeps the
# empty root and the packages between runs; the root in which the steps run is made anew each time, and left.
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
shift
folder=$tree/build/roots
mkdir -p "$folder"
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
# A root older than a week is made again, because it stands for a Debian of today.
if [ -z "$(find "$empty" -maxdepth 0 -mtime -7 2>/dev/null)" ]; then
  rm -rf "$empty.new"
  debootstrap --variant=minbase "$suite" "$empty.new" >"$folder/debootstrap-$release.log" 2>&1 ||
    { tail "$folder/debootstrap-$release.log" >&2; echo "FAILED: debootstrap $suite" >&2; exit 1; }
  rm -rf --one-file-system "$empty"
  mv "$empty.new" "$empty"
  touch "$empty"
fi
rm -rf --one-file-system "$root"
cp -a "$empty" "$root"
cp /etc/resolv.conf "$root/etc/resolv.conf"
# Lies in /srv, which an ordinary user may read, because a test runs as one.
git clone -q --no-hardlinks "$tree" "$root/srv/gdx"
mkdir -p "$folder/packages-$release"

# Mounts of its own, which end with it, and so do the processes in it. No chroot: that forbids user namespaces.
export root packages=$folder/packages-$release
exec unshare -m -p -f --kill-child bash -ec '
  mount --make-rprivate /
  mount --bind "$root" "$root"
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys"
  mount --rbind /dev "$root/dev"
  mkdir -p "$packages/partial"
  mount --bind "$packages" "$root/var/cache/apt/archives"
  cd "$root"
  pivot_root . mnt
  umount -l /mnt
  cd /
  exec /usr/bin/env -i HOME=/root TERM=dumb PATH=/usr/sbin:/usr/bin:/sbin:/bin /srv/gdx/tests/matrix/steps.sh "$@"' bash "$@"
