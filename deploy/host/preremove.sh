#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Before the files go: $1 is "remove" for dpkg and 0 for rpm, and otherwise it is an upgrade, which changes nothing here.
# Without /usr/bin/kerb no program could detach the chains, so a removal stops if they cannot be.
set -e
case $1 in
remove | 0) ;;
*) exit 0 ;;
esac
if [ -d /run/systemd/system ]; then
	systemctl --no-reload disable --now kerb.service
fi
kerb purge
