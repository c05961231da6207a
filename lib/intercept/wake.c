/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "wake.h"

#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "watch.h"

enum { MAX_MISSED = 64, TRIES = 50 };

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

int wake_sockets_open(struct wake_sockets *w, uint32_t ifindex, const char *address, bool patient)
{
	int tries = patient ? TRIES : 1;

	if (w->n && w->ifindex == ifindex)
		return w->n;
	wake_sockets_close(w);
	w->ifindex = ifindex;
	w->armed = w->missed = 0;
	if (!has_address(ifindex, address))
		return 0;
	while (w->n < WAKE_SOCKETS &&
	       !xsk_open_wake_socket(&w->of[w->n], ifindex, (uint32_t)w->n, &tries))
		w->n++;
	return w->n;
}

void wake_sockets_close(struct wake_sockets *w)
{
	while (w->n)
		xsk_close(&w->of[--w->n]);
}

/* A socket has room for several frames: discarding them touches cache lines that the kernel writes
 * on another CPU, so that is not done for each sleep. */
void wake_sockets_arm(struct wake_sockets *w)
{
	if (++w->armed < WAKE_FRAMES / 2) /* each of two CPUs that share a queue may add one */
		return;
	for (int i = 0; i < w->n; i++)
		xsk_discard(&w->of[i]);
	w->armed = 1;
}

bool wake_sockets_check(struct wake_sockets *w, int what, bool packets)
{
	if (what & WATCH_WAKE_SOCKET)
		w->missed = 0;
	else if (what & WATCH_RING)
		w->missed++; /* a packet of another queue */
	else if (what & WATCH_CLOCK && packets)
		w->missed += MAX_MISSED / 2; /* its frame may be about to arrive */
	return w->missed < MAX_MISSED;
}
