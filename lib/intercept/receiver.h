/* SPDX-License-Identifier: Apache-2.0 */
/* A receiver of one class: what the files of this library share. */
#pragma once

#include <sys/un.h>

#include "bell.h"
#include "connection.h"
#include "control.h"
#include "idle.h"
#include "kerb_intercept.h"
#include "record.h"
#include "source.h"
#include "thread.h"
#include "wait.h"
#include "watch.h"

/* A UDP socket that answers are sent from; fd -1: none. */
struct sender {
	int fd;
	uint16_t port; /* that it is bound to */
	bool six;      /* of IPv6, or of both */
	bool timed;    /* takes launch times */
};

struct kerb_intercept {
	struct kerb_intercept_options options;
	char path[sizeof(((struct sockaddr_un *)0)->sun_path)], class_name[NAME];

	int conn; /* to the control plane, -1: none at the moment, or the kernel module's */
	bool taken, restarted;
	uint64_t check_at, generation; /* check_at: when to check the connection again */
	struct ring ring;
	struct xsk xsk;
	struct bells bells;
	struct watch watch; /* over all of these */
	struct idle idle;
	struct controls controls;
	struct icpt_state *state;
	struct sender senders[2]; /* of IPv4, of IPv6 */
	struct sender given[2];	  /* likewise, the program's */
	int launch_clock;
	struct kerb_intercept_launches launches;

	struct wait wait;
	uint64_t seen; /* when we knew last that we were running */
	struct look before; /* when the record before was looked for */
	int schedstat;
	struct kerb_intercept_stats stats;
};

/* session_join connects to the module and opens the class; a receiver that has it already continues
 * with what is there now. */
int session_join(struct kerb_intercept *k, bool takeover);
int session_map_state(struct kerb_intercept *k, int fd, off_t at);
void senders_close(struct sender *s, int n);
/* launch_enable has a socket take launch times, and counts one. */
int launch_enable(struct kerb_intercept *k, struct sender *s, uint64_t when);
/* launch_collect counts what the kernel says of packets that it has not sent. */
void launch_collect(struct kerb_intercept *k, const struct sender *s);
/* record_packets counts packets that the receiver is about to be given. */
void record_packets(struct kerb_intercept *k, const struct kerb_packet *packets, int n);
