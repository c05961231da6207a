/* SPDX-License-Identifier: Apache-2.0 */
/* Internal declarations: a receiver of one class. */
#pragma once

#include <sys/un.h>

#include "wake.h"
#include "connection.h"
#include "control.h"
#include "idle.h"
#include "kerb_intercept.h"
#include "record.h"
#include "source.h"
#include "thread.h"
#include "wait.h"
#include "watch.h"

/* A UDP socket for answers; fd -1: none. */
struct sender {
	int fd;
	uint16_t port; /* local port, host byte order */
	bool six;      /* AF_INET6, possibly dual-stack */
	bool timed;    /* SO_TXTIME is set */
};

struct kerb_intercept {
	struct kerb_intercept_options options;
	char path[sizeof(((struct sockaddr_un *)0)->sun_path)], class_name[NAME_SIZE];

	int conn; /* to the control plane; -1: not connected, or a class of the kernel module */
	bool taken, restarted; /* another program took the class; the control plane has restarted */
	uint64_t check_at, generation; /* check_at: when to check the connection again */
	struct ring ring;
	struct xsk xsk;
	struct wake_sockets wake_sockets;
	struct watch watch; /* of all of these */
	struct idle idle;
	struct controls controls;
	struct icpt_state *state;
	struct sender senders[2];     /* IPv4, IPv6 */
	struct sender own_senders[2]; /* likewise, sockets of the program */
	int launch_clock;
	struct kerb_intercept_launches launches;

	struct wait wait;
	uint64_t running_at;	    /* last time at which this thread was known to run */
	struct sched_sample before; /* before the wait for the current packet */
	int schedstat;		    /* /proc/thread-self/schedstat */
	struct kerb_intercept_stats stats;
};

/* session_join connects to the module and opens the class, or opens it again and replaces the
 * mapped rings. Returns 0 or a negative errno. */
int session_join(struct kerb_intercept *k, bool takeover);
/* session_map_state maps the struct icpt_state of the class. */
int session_map_state(struct kerb_intercept *k, int fd, off_t at);
void senders_close(struct sender *s, int n);
/* launch_enable sets SO_TXTIME on a socket if it is not set, and counts a packet with a launch
 * time. */
int launch_enable(struct kerb_intercept *k, struct sender *s, uint64_t when);
/* launch_collect counts the packets that etf reports as dropped. */
void launch_collect(struct kerb_intercept *k, const struct sender *s);
/* record_packets counts packets that kerb_intercept_receive is about to return. */
void record_packets(struct kerb_intercept *k, const struct kerb_packet *packets, int n);
