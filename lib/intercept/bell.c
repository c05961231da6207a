/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "bell.h"

#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PATIENCE = 64, TRIES = 100 };

static bool has_address(uint32_t ifindex, const char *want)
{
	struct ifreq r = { 0 };
	const unsigned char *a = (const unsigned char *)r.ifr_hwaddr.sa_data;
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	bool known = if_indextoname(ifindex, r.ifr_name) && !ioctl(fd, SIOCGIFHWADDR, &r);
	char have[18];

	close(fd);
	snprintf(have, sizeof(have), "%02x:%02x:%02x:%02x:%02x:%02x", a[0], a[1], a[2], a[3], a[4], a[5]);
	return known && !strcmp(have, want);
}

int bells_open(struct bells *b, uint32_t ifindex, const char *address, bool patient)
{
	if (b->n && b->ifindex == ifindex)
		return b->n;
	bells_close(b);
	b->ifindex = ifindex;
	b->silent = 0;
	if (!has_address(ifindex, address))
		return 0;
	while (b->n < BELLS && !xsk_open_bell(&b->of[b->n], ifindex, (uint32_t)b->n, patient ? TRIES : 1))
		b->n++;
	return b->n;
}

void bells_close(struct bells *b)
{
	while (b->n)
		xsk_close(&b->of[--b->n]);
}

bool bells_heard(struct bells *b, enum bell_missed missed)
{
	bool rang = false;

	for (int i = 0; i < b->n; i++)
		rang |= xsk_silence(&b->of[i]);
	b->silent = rang ? 0 : b->silent + (int)missed;
	return b->silent < PATIENCE;
}
