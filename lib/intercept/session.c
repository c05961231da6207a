/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a class: the connection to the module's control plane, which passes the rings. */
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

/* request_class opens the class on a connection and stores the answer in line. */
static int request_class(const struct kerb_intercept *k, int conn, bool takeover, char *line,
			 int *fds)
{
	char why[MESSAGE_SIZE];
	int n, code;
	ssize_t size;

	snprintf(line, MESSAGE_SIZE, "{\"open\": \"%s\", \"takeover\": %s, \"pid\": %d}",
		 k->class_name, takeover ? "true" : "false", (int)getpid());
	code = message_send(conn, line, -1);
	if (code)
		return fail(-code, "open class %s: %s", k->class_name, strerror(-code));
	size = message_receive(conn, line, 0, fds, &n);
	if (size <= 0)
		return fail(size ? errno : EPIPE, "open class %s: %s", k->class_name,
			    size ? strerror(errno) : "the module went away");
	if (n == MESSAGE_FDS)
		return 0;
	close_fds(fds, n);
	json_string(line, "error", why, sizeof(why));
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

/* copy_statistics copies the consumer's statistics into a new page. */
static void copy_statistics(struct icpt_state *to, const struct icpt_state *from)
{
	size_t at = offsetof(struct icpt_state, received);

	memcpy((uint8_t *)to + at, (const uint8_t *)from + at, sizeof(*to) - at);
}

/* map_class maps the rings and the page that the control plane passed, and unmaps the previous
 * ones. */
static int map_class(struct kerb_intercept *k, const char *answer, const int *fds)
{
	struct kerb_intercept old = *k;
	bool again = k->state != NULL;
	int code = ring_map(&k->ring, fds[0], json_uint(answer, "ring"));

	if (code) {
		k->ring = old.ring;
		close_fds(fds, MESSAGE_FDS);
		return code;
	}
	code = session_map_state(k, fds[1], 0);
	if (!code)
		controls_map(&k->controls, fds[2]);
	close_fds(fds + 1, 2);
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

/* register_socket makes an AF_XDP socket receive the packets of the class, or only wake-ups. */
static int register_socket(int conn, const struct xsk *x, bool wake)
{
	char line[MESSAGE_SIZE], why[MESSAGE_SIZE];
	int fds[MESSAGE_FDS], n, code;

	snprintf(line, sizeof(line), "{\"xsk\": {\"ifindex\": %u, \"queue\": %u, \"bell\": %s}}",
		 x->ifindex, x->queue, wake ? "true" : "false");
	code = message_send(conn, line, x->fd);
	if (code)
		return fail(-code, "AF_XDP: hand over the socket: %s", strerror(-code));
	if (message_receive(conn, line, 0, fds, &n) <= 0)
		return fail(EPIPE, "AF_XDP: the module went away");
	close_fds(fds, n);
	json_string(line, "error", why, sizeof(why));
	return *why ? fail(EPROTO, "AF_XDP: %s", why) : 0;
}

/* open_wake_sockets makes the data plane wake this receiver by AF_XDP sockets, if the module offers
 * that and this process may open them. */
static void open_wake_sockets(struct kerb_intercept *k, int conn, const char *answer, bool patient)
{
	uint32_t ifindex = (uint32_t)json_uint(answer, "bell");
	char address[NAME_SIZE];

	json_string(answer, "mac", address, sizeof(address));
	if (!ifindex || k->xsk.fd >= 0 || k->options.wait == KERB_WAIT_SPIN ||
	    !wake_sockets_open(&k->wake_sockets, ifindex, address, patient)) {
		wake_sockets_close(&k->wake_sockets);
		return;
	}
	for (int i = 0; i < k->wake_sockets.n; i++)
		if (register_socket(conn, &k->wake_sockets.of[i], true))
			wake_sockets_close(&k->wake_sockets);
}

int session_join(struct kerb_intercept *k, bool takeover)
{
	int conn = connection_open(k->path), fds[MESSAGE_FDS], code;
	bool first = !k->state; /* nothing is late yet: it may wait for busy queues */
	char answer[MESSAGE_SIZE];

	if (conn < 0)
		return conn;
	code = request_class(k, conn, takeover, answer, fds);
	if (!code && k->restarted && k->generation == json_uint(answer, "generation"))
		close_fds(fds, MESSAGE_FDS); /* the mapped rings are still current */
	else if (!code)
		code = map_class(k, answer, fds);
	if (!code && k->xsk.fd >= 0)
		code = register_socket(conn, &k->xsk, false);
	watch_end(&k->watch);
	if (code) {
		close(conn);
		return code;
	}
	open_wake_sockets(k, conn, answer, first);
	k->conn = conn;
	k->restarted = false;
	return 0;
}
