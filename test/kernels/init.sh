#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The machine's first process: mounts the file systems, loads the modules, runs every test binary in /matrix/plan and powers off.
# /matrix/settings sets nonce (the word that starts each line for the host), port (the second serial port), limit (seconds per binary), run and skip (-test.run and -test.skip).
# Modules that the kernel rejects are listed in /run/not-loaded, which the smoke tests read.
# The kernel writes to the first serial port, this script to the second, so that neither splits a line of the other.

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
mount --make-rshared / # as with systemd

. /matrix/settings
exec </dev/null >"/dev/$port" 2>&1

# The leading newline ends an incomplete last line of a test.
report() { printf '\n%s %s\n' "$nonce" "$*"; }

report boot "$(uname -r)"
for module in /matrix/modules/*.ko; do
	insmod "$module" || echo "$module" >>/run/not-loaded
done
ip link set lo up

# RLIMIT_MEMLOCK keeps the kernel's default: before 5.11 the code under test has to raise it.
while read -r pkg; do
	report start "$pkg"
	cd "/src/$pkg" || exit
	timeout -s KILL $((limit + 10)) "$PWD/test.bin" -test.v=test2json -test.paniconexit0 -test.timeout="${limit}s" -test.run="$run" -test.skip="$skip" </dev/null
	report exit "$pkg" $?
done </matrix/plan
report done

exec >/dev/null 2>&1 # closing the port waits until all output is sent
sleep 1
poweroff -f
