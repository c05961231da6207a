#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Before the files go: $1 is "remove" for dpkg and 0 for rpm, and otherwise it is an upgrade, which changes nothing here.
# Without /usr/bin/kerb no program could detach the chains, so a removal stops if they cannot be, and the agent runs on.
set -e
case $1 in
remove | 0) ;;
*) exit 0 ;;
esac
unit=
if [ -d /run/systemd/system ]; then
	unit=$(systemctl is-active kerb.service || :)
	systemctl stop kerb.service
fi
# Chains are pinned in a BPF file system: where none is mounted there are none.
if grep -Eq '^[^ ]+ [^ ]+ bpf ' /proc/mounts && ! /usr/bin/kerb purge; then
	[ "$unit" != active ] || systemctl start kerb.service
	exit 1
fi
if [ -n "$unit" ]; then systemctl --no-reload disable kerb.service; fi
