/* SPDX-License-Identifier: Apache-2.0 */
/* The receiver's connection to the module, which hands over the rings. */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "receiver.h"

_Static_assert(sizeof(struct icpt_state) <= ICPT_PAGE, "the consumer's state fits its page");

/* request_class opens the class on a connection and leaves the answer in line. */
static int request_class(const struct kerb_intercept *k, int conn, bool takeover, char *line,
			 int *fds)
{
	char why[LINE];
	int n, code;
	ssize_t size;

	snprintf(line, LINE, "{\"open\": \"%s\", \"takeover\": %s, \"pid\": %d}", k->class_name,
		 takeover ? "true" : "false", (int)getpid());
	code = say(conn, line, -1);
	if (code)
		return fail(-code, "open class %s: %s", k->class_name, strerror(-code));
	size = hear(conn, line, 0, fds, &n);
	if (size <= 0)
		return fail(size ? errno : EPIPE, "open class %s: %s", k->class_name,
			    size ? strerror(errno) : "the module went away");
	if (n == DESCRIPTORS)
		return 0;
	close_all(fds, n);
	text(line, "error", why, sizeof(why));
	return fail(
		strstr(why, "has a consumer") ? EBUSY : EPROTO, "%s",
		*why ? why
		     : "the module's answer is none: Kerb's and this library's versions differ");
}

int session_map_state(struct kerb_intercept *k, int fd, off_t at)
{
	void *page = mmap(NULL, ICPT_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, at);

	if (page == MAP_FAILED)
		return fail(errno, "map the state of class %s: %s", k->class_name, strerror(errno));
	k->state = page;
	return 0;
}

/* copy_statistics takes this receiver's numbers along into a new page. */
static void copy_statistics(struct icpt_state *to, const struct icpt_state *from)
{
	size_t at = offsetof(struct icpt_state, received);

	memcpy((uint8_t *)to + at, (const uint8_t *)from + at, sizeof(*to) - at);
}

/* map_class maps what the control plane has handed over and leaves what was before. */
static int map_class(struct kerb_intercept *k, const char *answer, const int *fds)
{
	struct kerb_intercept old = *k;
	bool again = k->state != NULL;
	int code = ring_map(&k->ring, fds[0], number(answer, "ring"));

	if (code) {
		k->ring = old.ring;
		close_all(fds, DESCRIPTORS);
		return code;
	}
	code = session_map_state(k, fds[1], 0);
	if (!code)
		controls_map(&k->controls, fds[2]);
	close_all(fds + 1, 2);
	if (code) {
		ring_unmap(&k->ring);
		k->ring = old.ring;
		return code;
	}
	k->generation = k->state->generation;
	k->state->waiting = 0;
	k->state->pid = (uint32_t)syscall(SYS_gettid);
	if (again) {
		copy_statistics(k->state, old.state);
		ring_unmap(&old.ring);
		munmap(old.state, ICPT_PAGE);
		controls_unmap(&old.controls);
		k->ring.lost = 0;
	}
	return 0;
}

/* register_socket has the class's packets go to an AF_XDP socket, or ring it. */
static int register_socket(int conn, const struct xsk *x, bool bell)
{
	char line[LINE], why[LINE];
	int fds[DESCRIPTORS], n, code;

	snprintf(line, sizeof(line), "{\"xsk\": {\"ifindex\": %u, \"queue\": %u, \"bell\": %s}}",
		 x->ifindex, x->queue, bell ? "true" : "false");
	code = say(conn, line, x->fd);
	if (code)
		return fail(-code, "AF_XDP: hand over the socket: %s", strerror(-code));
	if (hear(conn, line, 0, fds, &n) <= 0)
		return fail(EPIPE, "AF_XDP: the module went away");
	close_all(fds, n);
	text(line, "error", why, sizeof(why));
	return *why ? fail(EPROTO, "AF_XDP: %s", why) : 0;
}

/* open_bells has the kernel part wake this receiver by sockets, if the module offers that and it
 * may have such. */
static void open_bells(struct kerb_intercept *k, int conn, const char *answer, bool patient)
{
	uint32_t ifindex = (uint32_t)number(answer, "bell");
	char address[NAME];

	text(answer, "mac", address, sizeof(address));
	if (!ifindex || k->xsk.fd >= 0 || k->options.wait == KERB_WAIT_SPIN ||
	    !bells_open(&k->bells, ifindex, address, patient)) {
		bells_close(&k->bells);
		return;
	}
	for (int i = 0; i < k->bells.n; i++)
		if (register_socket(conn, &k->bells.of[i], true))
			bells_close(&k->bells);
}

int session_join(struct kerb_intercept *k, bool takeover)
{
	int conn = dial(k->path), fds[DESCRIPTORS], code;
	bool first = !k->state; /* no thread waits for packets yet */
	char answer[LINE];

	if (conn < 0)
		return conn;
	code = request_class(k, conn, takeover, answer, fds);
	if (!code && k->restarted && k->generation == number(answer, "generation"))
		close_all(fds, DESCRIPTORS); /* what we have still is what there is */
	else if (!code)
		code = map_class(k, answer, fds);
	if (!code && k->xsk.fd >= 0)
		code = register_socket(conn, &k->xsk, false);
	watch_end(&k->watch);
	if (code) {
		close(conn);
		return code;
	}
	open_bells(k, conn, answer, first);
	k->conn = conn;
	k->restarted = false;
	return 0;
}
