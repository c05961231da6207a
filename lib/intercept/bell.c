/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "bell.h"

#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "watch.h"

enum { PATIENCE = 64, TRIES = 50 };

static bool has_address(uint32_t ifindex, const char *want)
{
	struct ifreq r = { 0 };
	const unsigned char *a = (const unsigned char *)r.ifr_hwaddr.sa_data;
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	bool known = if_indextoname(ifindex, r.ifr_name) && !ioctl(fd, SIOCGIFHWADDR, &r);
	char have[18];

	close(fd);
	snprintf(have, sizeof(have), "%02x:%02x:%02x:%02x:%02x:%02x", a[0], a[1], a[2], a[3], a[4],
		 a[5]);
	return known && !strcmp(have, want);
}

int bells_open(struct bells *b, uint32_t ifindex, const char *address, bool patient)
{
	int tries = patient ? TRIES : 1;

	if (b->n && b->ifindex == ifindex)
		return b->n;
	bells_close(b);
	b->ifindex = ifindex;
	b->armed = b->silent = 0;
	if (!has_address(ifindex, address))
		return 0;
	while (b->n < BELLS && !xsk_open_bell(&b->of[b->n], ifindex, (uint32_t)b->n, &tries))
		b->n++;
	return b->n;
}

void bells_close(struct bells *b)
{
	while (b->n)
		xsk_close(&b->of[--b->n]);
}

/* A bell has room to ring some times before it has to be silenced, which takes cache lines that the
 * kernel writes on another CPU. */
void bells_arm(struct bells *b)
{
	if (++b->armed < BELL_FRAMES / 2) /* of two CPUs that share a queue each may ring once */
		return;
	for (int i = 0; i < b->n; i++)
		xsk_silence(&b->of[i]);
	b->armed = 1;
}

bool bells_heard(struct bells *b, int what, bool packets)
{
	if (what & WATCH_BELL)
		b->silent = 0;
	else if (what & WATCH_RING)
		b->silent++; /* a packet of another queue */
	else if (what & WATCH_CLOCK && packets)
		b->silent += PATIENCE / 2; /* one may be about to ring */
	return b->silent < PATIENCE;
}
