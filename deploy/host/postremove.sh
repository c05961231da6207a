#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# After the files are gone. `apt purge` removes the desired state, the configuration and the keys, too; rpm has no such step.
set -e
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
if [ "$1" = purge ]; then
	rm -rf /var/lib/kerb /run/kerb /etc/kerb
	if getent group kerb >/dev/null; then groupdel kerb || :; fi # it may be the primary group of a user
fi
