/* SPDX-License-Identifier: Apache-2.0 */
/* Answers with a launch time: SO_TXTIME, which the queueing disciplines fq and etf implement. */
#define _GNU_SOURCE
#include <time.h> /* linux/errqueue.h needs it */

#include <errno.h>
#include <linux/errqueue.h>
#include <linux/net_tstamp.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "receiver.h"

int kerb_intercept_launch_clock(struct kerb_intercept *k, int clock)
{
	struct timespec now;

	if (clock != CLOCK_MONOTONIC && clock != CLOCK_TAI)
		return fail(EINVAL, "launch times are of CLOCK_MONOTONIC (fq) or CLOCK_TAI (etf)");
	if (clock_gettime(clock, &now))
		return fail(errno, "clock %d: %s", clock, strerror(errno));
	k->launch_clock = clock;
	for (int i = 0; i < 2; i++)
		k->senders[i].timed = k->own_senders[i].timed = false;
	return 0;
}

int launch_enable(struct kerb_intercept *k, struct sender *s, uint64_t when)
{
	struct sock_txtime how = { .clockid = k->launch_clock, .flags = SOF_TXTIME_REPORT_ERRORS };
	struct timespec now;

	if (!s->timed && setsockopt(s->fd, SOL_SOCKET, SO_TXTIME, &how, sizeof(how)))
		return fail(errno, "launch times by clock %d: %s%s", how.clockid, strerror(errno),
			    errno == EPERM ? ": CLOCK_TAI needs CAP_NET_ADMIN" : "");
	s->timed = true;
	clock_gettime(k->launch_clock, &now);
	k->launches.timed++;
	k->launches.late += (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec > when;
	return 0;
}

/* is_launch reports whether a message of an error queue is about a packet with a launch time. */
static bool is_launch(struct msghdr *m)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
		struct sock_extended_err e;

		if ((c->cmsg_level != IPPROTO_IP || c->cmsg_type != IP_RECVERR) &&
		    (c->cmsg_level != IPPROTO_IPV6 || c->cmsg_type != IPV6_RECVERR))
			continue;
		memcpy(&e, CMSG_DATA(c), sizeof(e));
		if (e.ee_origin == SO_EE_ORIGIN_TXTIME)
			return true;
	}
	return false;
}

void launch_collect(struct kerb_intercept *k, const struct sender *s)
{
	union {
		char space[512];
		struct cmsghdr align;
	} control;

	for (;;) {
		struct msghdr m = { .msg_control = &control, .msg_controllen = sizeof(control) };

		if (!s->timed || recvmsg(s->fd, &m, MSG_ERRQUEUE | MSG_DONTWAIT) < 0)
			return;
		k->launches.dropped += is_launch(&m);
	}
}

void kerb_intercept_launches(struct kerb_intercept *k, struct kerb_intercept_launches *l)
{
	for (int i = 0; i < 2; i++) {
		launch_collect(k, &k->senders[i]);
		launch_collect(k, &k->own_senders[i]);
	}
	*l = k->launches;
}
