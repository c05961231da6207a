#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The machine's first process: makes the file systems, loads the modules, runs every test binary of /matrix/plan and powers off.
# /matrix/settings gives nonce (the word that starts each line meant for the host), port (the second serial port), limit (seconds per binary), run and skip (-test.run and -test.skip).
# Modules that the kernel refuses are listed in /run/not-loaded, where the smoke tests look.
# The kernel writes to the first serial port, everything here to the second: neither can cut a line of the other.

export PATH=/sbin:/bin:/busybox HOME=/root TMPDIR=/tmp KERB_MATRIX=1
/bin/busybox mkdir -p /busybox /dev /proc /sys /tmp /run /root
/bin/busybox --install -s /busybox
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs -o mode=1777 tmp /tmp
mount -t tmpfs run /run
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t bpf bpf /sys/fs/bpf
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tracefs tracefs /sys/kernel/tracing
mount -t debugfs debugfs /sys/kernel/debug
ln -s /proc/self/fd /dev/fd
mount --make-rshared / # as systemd leaves it

. /matrix/settings
exec </dev/null >"/dev/$port" 2>&1

# An empty line first: a test may have left its last line open.
tell() { printf '\n%s %s\n' "$nonce" "$*"; }

tell boot "$(uname -r)"
for module in /matrix/modules/*.ko; do
	insmod "$module" || echo "$module" >>/run/not-loaded
done
ip link set lo up

# RLIMIT_MEMLOCK stays as the kernel sets it: raising it is the business of the code under test on kernels before 5.11.
while read -r pkg; do
	tell start "$pkg"
	cd "/src/$pkg" || exit
	timeout -s KILL $((limit + 10)) "$PWD/test.bin" -test.v=test2json -test.paniconexit0 -test.timeout="${limit}s" -test.run="$run" -test.skip="$skip" </dev/null
	tell exit "$pkg" $?
done </matrix/plan
tell done

exec >/dev/null 2>&1 # closing the port waits until it has sent everything
sleep 1
poweroff -f
