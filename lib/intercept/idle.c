/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "idle.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "connection.h"

#define DEVICE "/dev/cpu_dma_latency"

/* PM_QOS_CPU_LATENCY_DEFAULT_VALUE of linux/pm_qos.h, us. */
enum { NO_LIMIT = 2000000000 };

int idle_open(struct idle *i)
{
	*i = (struct idle){ .fd = open(DEVICE, O_WRONLY | O_CLOEXEC) };
	return i->fd < 0
		       ? fail(errno, "idle_poll: %s: %s (it is root's, and not in every container)",
			      DEVICE, strerror(errno))
		       : 0;
}

void idle_close(struct idle *i)
{
	idle_set(i, false); /* a child process may have inherited the descriptor */
	if (i->fd >= 0)
		close(i->fd);
	i->fd = -1;
}

void idle_set(struct idle *i, bool polls)
{
	int32_t us = polls ? 0 : NO_LIMIT; /* the accepted exit latency of idle states */

	if (i->fd < 0 || polls == i->polls)
		return;
	i->polls = polls;
	(void)!write(i->fd, &us, sizeof(us)); /* the device accepts any value */
}
