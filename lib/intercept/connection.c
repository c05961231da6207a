/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "connection.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "kerb_intercept.h"

static _Thread_local char message[MESSAGE_SIZE];

int fail(int code, const char *format, ...)
{
	va_list list;

	va_start(list, format);
	vsnprintf(message, sizeof(message), format, list);
	va_end(list);
	return -code;
}

const char *kerb_intercept_error(void) { return message; }

static const char *json_field(const char *json, const char *name)
{
	char quoted[NAME_SIZE];
	const char *at;

	snprintf(quoted, sizeof(quoted), "\"%s\":", name);
	at = strstr(json, quoted);
	return at ? at + strlen(quoted) + strspn(at + strlen(quoted), " ") : NULL;
}

uint64_t json_uint(const char *json, const char *name)
{
	const char *at = json_field(json, name);

	return at ? strtoull(at, NULL, 10) : 0;
}

void json_string(const char *json, const char *name, char *to, size_t size)
{
	const char *at = json_field(json, name);
	size_t n = 0;

	for (at = at && *at == '"' ? at + 1 : ""; *at && *at != '"' && n + 1 < size; at++) {
		if (*at == '\\' && at[1])
			at++;
		to[n++] = *at;
	}
	to[n] = 0;
}

ssize_t message_receive(int conn, char *line, int flags, int *fds, int *n)
{
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(MESSAGE_FDS * sizeof(int))];
	} control;
	struct iovec part = { line, MESSAGE_SIZE - 1 };
	struct msghdr m = { .msg_iov = &part,
			    .msg_iovlen = 1,
			    .msg_control = &control,
			    .msg_controllen = sizeof(control) };
	ssize_t size = recvmsg(conn, &m, flags | MSG_CMSG_CLOEXEC);

	*n = 0;
	line[size > 0 ? size : 0] = 0;
	if (size <= 0)
		return size;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		*n = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		memcpy(fds, CMSG_DATA(c), (size_t)*n * sizeof(int));
	}
	return size;
}

int message_send(int conn, const char *line, int fd)
{
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec part = { (void *)line, strlen(line) };
	struct msghdr m = { .msg_iov = &part, .msg_iovlen = 1 };

	if (fd >= 0) {
		m.msg_control = &control;
		m.msg_controllen = sizeof(control);
		control.head = (struct cmsghdr){ .cmsg_len = CMSG_LEN(sizeof(int)),
						 .cmsg_level = SOL_SOCKET,
						 .cmsg_type = SCM_RIGHTS };
		memcpy(CMSG_DATA(&control.head), &fd, sizeof(int));
	}
	return sendmsg(conn, &m, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

int connection_open(const char *path)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	struct timeval patience = { .tv_sec = 10 };
	int conn = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	if (conn < 0)
		return fail(errno, "socket: %s", strerror(errno));
	snprintf(at.sun_path, sizeof(at.sun_path), "%s", path);
	setsockopt(conn, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	if (!connect(conn, (void *)&at, sizeof(at)))
		return conn;
	int code = errno;

	close(conn);
	return fail(code, "connect to %s: %s (is the module applied, and may this user open it?)",
		    path, strerror(code));
}

void close_fds(const int *fds, int n)
{
	for (int i = 0; i < n; i++)
		close(fds[i]);
}
