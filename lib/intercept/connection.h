/* SPDX-License-Identifier: Apache-2.0 */
/* The protocol of the module's control plane: flat JSON objects whose names need no escapes, with
 * file descriptors (SCM_RIGHTS); modules/intercept/record.h has the messages. */
#pragma once

#include <stdint.h>
#include <sys/types.h>

enum { MESSAGE_SIZE = 512, NAME_SIZE = 64, MESSAGE_FDS = 3 };

/* fail stores a message for kerb_intercept_error and returns -code. */
__attribute__((format(printf, 2, 3))) int fail(int code, const char *format, ...);

/* connection_open connects to a Unix socket. Returns its descriptor, or a negative errno. */
int connection_open(const char *path);
/* message_receive receives a message and its descriptors, *n of them. Returns its size; 0 if the
 * peer has closed the connection; -1 and errno. */
ssize_t message_receive(int conn, char *line, int flags, int *fds, int *n);
/* message_send sends a message, with a descriptor unless fd is negative. Returns 0 or a negative
 * errno. */
int message_send(int conn, const char *line, int fd);
/* json_uint returns a number of an object, 0 if there is none. */
uint64_t json_uint(const char *json, const char *name);
/* json_string copies a string of an object without its escapes, an empty one if there is none. */
void json_string(const char *json, const char *name, char *to, size_t size);
void close_fds(const int *fds, int n);
