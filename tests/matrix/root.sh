# Empty Debians in build/roots, for scripts that source this: make_root, then enter_root. build/roots keeps the empty root
# and the packages between runs; the root that is entered is made anew each time, and left.
PATH=$PATH:/usr/sbin:/sbin

skip() {
  echo "SKIPPED: $*" >&2
  exit 77
}

# make_root TREE RELEASE NAME: Debian RELEASE, 12 or 13, in build/roots/NAME of TREE. Sets root and packages. One run per
# name at a time.
make_root() {
  local folder=$1/build/roots release=$2 suite
  case $release in
    12) suite=bookworm ;;
    13) suite=trixie ;;
    *)
      echo "make_root '$release': use 12 or 13" >&2
      exit 2
      ;;
  esac
  [ "$(id -u)" -eq 0 ] || skip "only root makes a Debian in a folder: run this as root"
  command -v debootstrap >/dev/null || skip "debootstrap is missing; install Debian's debootstrap and git"
  unshare -m -p -f true 2>/dev/null || skip "no mount namespace may be made here: allow it to root"

  mkdir -p "$folder" "$folder/packages-$release"
  exec 8>"$folder/.lock-$3" 9>"$folder/.lock-$release"
  flock 8
  local empty=$folder/debian-$release-empty
  export root=$folder/$3 packages=$folder/packages-$release
  flock 9
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
  exec 9>&-
  cp /etc/resolv.conf "$root/etc/resolv.conf"
  # Authorities that this machine's administrator has added, for pip in the root.
  [ ! -d /usr/local/share/ca-certificates ] || cp -rT /usr/local/share/ca-certificates "$root/usr/local/share/ca-certificates"
}

# enter_root COMMAND...: instead of this script. Mounts of its own, which end with it, and so do the processes in it. No
# chroot: that forbids user namespaces.
enter_root() {
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
    exec /usr/bin/env -i HOME=/root TERM=dumb PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"' bash "$@"
}
