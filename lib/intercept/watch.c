/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "watch.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "connection.h"

#ifndef SYS_epoll_pwait2 /* Linux 5.11 */
#define SYS_epoll_pwait2 441
#endif

enum { EVENTS = 8 };

int watch_begin(struct watch *w)
{
	*w = (struct watch){ .fd = epoll_create1(EPOLL_CLOEXEC), .clock = -1 };
	return w->fd < 0 ? fail(errno, "epoll: %s", strerror(errno)) : 0;
}

void watch_end(struct watch *w)
{
	if (w->fd < 0)
		return;
	close(w->fd);
	if (w->clock >= 0)
		close(w->clock);
	w->fd = w->clock = -1;
}

int watch_add(struct watch *w, int fd, enum watched what)
{
	/* Edge-triggered for wake sockets, which stay readable until their frames are discarded,
	 * which is not done each time; the others are level-triggered. */
	struct epoll_event e = { .events = EPOLLIN | (what == WATCH_WAKE_SOCKET ? EPOLLET : 0),
				 .data.u32 = what };

	if (fd >= 0 && epoll_ctl(w->fd, EPOLL_CTL_ADD, fd, &e))
		return fail(errno, "epoll: %s", strerror(errno));
	return 0;
}

int watch_clock(struct watch *w, uint64_t every)
{
	struct timespec t = { (time_t)(every / 1000000000), (long)(every % 1000000000) };
	struct itimerspec both = { t, t };

	w->clock = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (w->clock < 0 || timerfd_settime(w->clock, 0, &both, NULL))
		return fail(errno, "timerfd: %s", strerror(errno));
	return watch_add(w, w->clock, WATCH_CLOCK);
}

/* epoll_sleep is epoll_pwait2 (Linux 5.11), or the same by ppoll, as epoll_wait counts in ms. */
static int epoll_sleep(int fd, struct epoll_event *events, const struct timespec *t)
{
	int n = (int)syscall(SYS_epoll_pwait2, fd, events, EVENTS, t, NULL, 0);
	struct pollfd one = { .fd = fd, .events = POLLIN };

	/* EPERM: seccomp filters that are older than the call */
	if (n >= 0 || (errno != ENOSYS && errno != EPERM))
		return n;
	n = ppoll(&one, 1, t, NULL);
	return n > 0 ? epoll_wait(fd, events, EVENTS, 0) : n;
}

int watch_sleep(const struct watch *w, uint64_t now, uint64_t until)
{
	uint64_t left = until > now ? until - now : 0;
	struct timespec t = { (time_t)(left / 1000000000), (long)(left % 1000000000) };
	struct epoll_event events[EVENTS];
	int what = 0, n = epoll_sleep(w->fd, events, until == UINT64_MAX ? NULL : &t);
	uint64_t ticks;

	if (n < 0)
		return fail(errno, "epoll: %s", strerror(errno));
	for (int i = 0; i < n; i++) {
		what |= (int)events[i].data.u32;
		if (events[i].data.u32 == WATCH_RING && events[i].events & (EPOLLERR | EPOLLHUP))
			what |= WATCH_BROKEN;
	}
	if (what & WATCH_CLOCK)
		(void)!read(w->clock, &ticks, sizeof(ticks)); /* a read rearms it */
	return what;
}
