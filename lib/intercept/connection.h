/* SPDX-License-Identifier: Apache-2.0 */
/* Talking with the module's control plane: flat JSON objects, in which names need no escapes, with
 * descriptors. */
#pragma once

#include <stdint.h>
#include <sys/types.h>

enum { LINE = 512, NAME = 64, DESCRIPTORS = 3 };

/* fail keeps a sentence for kerb_intercept_error and returns -code. */
__attribute__((format(printf, 2, 3))) int fail(int code, const char *format, ...);

int dial(const char *path);
/* hear receives a message and its descriptors; 0: the connection has ended. */
ssize_t hear(int conn, char *line, int flags, int *fds, int *n);
/* say sends a message, with a descriptor if it is none below 0. */
int say(int conn, const char *line, int fd);
uint64_t number(const char *json, const char *name);
/* text copies a string without its escapes; empty if there is none. */
void text(const char *json, const char *name, char *to, size_t size);
void close_all(const int *fds, int n);
