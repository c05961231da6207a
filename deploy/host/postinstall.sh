#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# After an installation or an upgrade. A running agent is restarted: chains in the kernel stay attached meanwhile.
set -e
getent group kerb >/dev/null || groupadd --system kerb
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	systemctl try-restart kerb.service || echo "kerb: the agent does not start again; see journalctl -u kerb" >&2
fi
