#!/usr/bin/env bash
# Usage: docker_images.sh BUSYBOX DIRECTORY
# Makes DIRECTORY/slice.tar, a root of BusyBox and this machine's bash, Python, git and apt with the
# libraries they need, and DIRECTORY/busybox.tar, a root in which there is nothing but BusyBox.
set -euo pipefail
busybox=$1
out=$2
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

libraries() {
    { ldd "$@" 2>/dev/null || true; } | grep -oE '/[^ ]+\.so[^ ]*' | grep -v ':$' | sort -u
}

# Copies a file to the same place below the root; links become files.
add() {
    mkdir -p "$root$(dirname "$1")"
    cp -L "$1" "$root$1"
}

mkdir -p "$root"/{bin,dev,etc,lib64,proc,sys,tmp,usr/bin,usr/lib}
chmod 1777 "$root/tmp"
cp "$busybox" "$root/bin/busybox"
# Not itself: a link to itself runs nothing.
for applet in $("$busybox" --list | grep -vx busybox); do
    ln -s busybox "$root/bin/$applet"
done
printf 'root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000::/tmp:/bin/sh\n' > "$root/etc/passwd"
printf 'root:x:0:\nagent:x:1000:\n' > "$root/etc/group"
tar -C "$root" -cf "$out/busybox.tar" .

python=$(/usr/bin/env python3 -c 'import os, sys; print(os.path.realpath(sys.executable))')
standard=$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
programs=("$(command -v bash)" "$(command -v git)" "$python")
# What installs a package that is at hand.
for program in apt-get dpkg dpkg-deb dpkg-query dpkg-split tar; do
    programs+=("$(command -v "$program")")
done
programs+=(/usr/lib/apt/methods/{copy,file,store} /sbin/ldconfig)
for program in "${programs[@]}"; do
    add "$(realpath "$program")"
done
rm -f "$root/bin/bash" "$root/bin/git"
for program in bash git; do
    real=$(realpath "$(command -v "$program")")
    [ -e "$root/bin/$program" ] || ln -s "$real" "$root/bin/$program"
done
(cd / && find "${standard#/}" \( -name __pycache__ -o -name test -o -name idlelib -o -name tkinter \
    -o -name site-packages -o -name dist-packages -o -name 'config-*' \) -prune -o -type f -print0 |
    tar --null -T - -cf -) | tar -C "$root" -xf -
# The path without /usr, too, where the two are one on this machine.
for name in python3 python; do
    ln -sf "$python" "$root/bin/$name"
done
for library in $(libraries "${programs[@]}" "$standard"/lib-dynload/*.so); do
    [ -e "$root$library" ] || add "$library"
done
mkdir -p "$root"/etc/apt/{apt.conf.d,preferences.d,sources.list.d} "$root"/var/{cache/apt/archives/partial,log/apt} \
    "$root"/var/lib/{apt/lists/partial,dpkg/{info,updates,triggers}} "$root/usr/share"
touch "$root/var/lib/dpkg/status" "$root/var/lib/dpkg/available"
cp -r /usr/share/dpkg "$root/usr/share/"
echo '_apt:x:42:65534::/nonexistent:/bin/false' >> "$root/etc/passwd"
tar -C "$root" -cf "$out/slice.tar" .
