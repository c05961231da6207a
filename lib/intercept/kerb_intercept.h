/* SPDX-License-Identifier: Apache-2.0 */
/* Programs that get packets from Kerb's module `intercept` within microseconds. C11 and C++, Linux
 * 5.10 and later, libc only.
 *
 *	struct kerb_intercept *k;
 *	struct kerb_packet p[16];
 *
 *	if (kerb_intercept_open(&k, "intercept", "ctrl", NULL))
 *		errx(1, "%s", kerb_intercept_error());
 *	for (;;) {
 *		int n = kerb_intercept_receive(k, p, 16, -1);
 *		for (int i = 0; i < n; i++)
 *			handle(p[i].frame + p[i].payload, p[i].caplen - p[i].payload);
 *	}
 *
 * Functions return 0 or more, or -errno; kerb_intercept_error then has a sentence for people, of
 * the thread's last error. One thread at a time uses a receiver. Times are ns of CLOCK_MONOTONIC,
 * numbers in host byte order. */
#ifndef KERB_INTERCEPT_H
#define KERB_INTERCEPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kerb_intercept;

/* What the receiver does while there is no packet. */
enum kerb_wait {
	/* as quick as spinning, and as little in the way of others as sleeping: wait.h */
	KERB_WAIT_ADAPTIVE,
	KERB_WAIT_SPIN,	    /* takes the whole CPU */
	KERB_WAIT_SLEEP,    /* each packet waits for a wake-up */
};

struct kerb_intercept_options {
	enum kerb_wait wait;
	/* Adaptive: packets that come less often than this on average, and not regularly, are
	 * slept for. 0: 1 ms. */
	uint64_t reach;
	/* Adaptive: if not 0, packets may wait this long to be taken together, which takes the
	 * least CPU of all: what a receiver has to spare between its packets' arrival and their
	 * deadline. */
	uint64_t patience;
	/* Adaptive: of 1000 packets that come regularly, how many are to find the receiver running;
	 * the others wake it. Fewer take less CPU and have the longer tail. 0: 975; at most 999. */
	uint32_t awake;

	/* The calling thread, which has to be the one that receives: */
	bool pin;	  /* to cpu */
	int cpu;
	/* SCHED_FIFO priority, 1 to 99; 0: nice -20 if the process may, and short slices */
	int fifo;
	bool keep;	  /* leave priority and slices as they are */
	bool lock_memory; /* no page of this process is ever fetched from a disk */
	/* Not of KERB_WAIT_SPIN: all CPUs that have nothing to do poll instead of halting (PM QoS:
	 * /dev/cpu_dma_latency, which is root's), as by the kernel's parameter idle=poll, until
	 * this receiver has waited for a second without a packet: a wake-up takes 5 us instead of
	 * 40 on a virtual machine. It takes energy and, of a virtual machine, time of the host's
	 * CPUs, but no task's here. Where the first idle state is not POLL (arm64, no cpuidle
	 * driver) it changes little. */
	bool idle_poll;

	bool takeover;	     /* take the class from the program that has it */
	/* AF_XDP, for stolen packets of this interface and queue. It needs CAP_NET_RAW. NULL: the
	 * ring, from which a socket wakes this receiver where that may be and the class's delivery
	 * is auto. */
	const char *device;
	uint32_t queue;
	bool copy;	     /* AF_XDP: copy even if the driver could do without */
};

/* One packet. frame is valid until the next kerb_intercept_receive or _release. */
struct kerb_packet {
	const uint8_t *frame; /* from the Ethernet header on */
	uint32_t len;	      /* of the frame */
	uint32_t caplen;      /* bytes of it that are here */
	uint16_t l3, l4, payload; /* offsets; payload is behind the transport header */
	uint16_t vlan;	      /* TCI of a tag that the kernel has taken out of the frame; 0: none */
	uint32_t flags;	      /* KERB_PACKET_* */
	uint32_t ifindex;
	uint64_t seq;	      /* in the class, from 0 on; lost packets have one, too */
	uint64_t sent, received; /* T1: when the kernel saw it. T2: when this receiver did */
	uint64_t lost;	      /* packets that found no room since the packet before */
};

#define KERB_PACKET_EGRESS    (1u << 0) /* the service has sent it; else it is for the service */
#define KERB_PACKET_STOLEN    (1u << 1) /* no other receiver gets it */
#define KERB_PACKET_TRUNCATED (1u << 2) /* caplen < len */
#define KERB_PACKET_SEGMENTS  (1u << 3) /* stands for several packets (GRO, GSO) */
#define KERB_PACKET_FRAGMENT  (1u << 4)
#define KERB_PACKET_IP4	      (1u << 5)
#define KERB_PACKET_IP6	      (1u << 6)
#define KERB_PACKET_L4	      (1u << 7) /* l4 is a complete TCP, UDP, ICMP or ICMPv6 header */

/* Packets are counted by class, for all receivers together; how one waits is the receiver's. */
struct kerb_intercept_stats {
	uint64_t received, lost;
	uint64_t late;	   /* received after the deadline */
	uint64_t longest;  /* T2 - T1 */
	uint64_t deadline; /* 0: none */
	/* how the receiver waited: times that it slept, for packets and as a rest; checks of an
	 * empty ring */
	uint64_t slept, rested, spun;
	uint64_t held_up;  /* times that others had the CPU for long; not of KERB_WAIT_SLEEP */
};

/* kerb_intercept_open opens a class of a module: its name, or the path of its socket, by default
 * /run/kerb/modules/<name>.sock. options: NULL for the defaults. */
int kerb_intercept_open(struct kerb_intercept **k, const char *module, const char *class_name,
			const struct kerb_intercept_options *options);

/* kerb_intercept_open_device is for a descriptor of Kerb's kernel module that is attached to a
 * class (kmod/): ring is the size of its ring. The descriptor becomes the receiver's. */
int kerb_intercept_open_device(struct kerb_intercept **k, int fd, size_t ring,
			       const struct kerb_intercept_options *options);

void kerb_intercept_close(struct kerb_intercept *k);

/* kerb_intercept_receive releases the packets of the last call and waits for new ones: at most
 * max, at most timeout ns (0: not at all, negative: indefinitely). The number of packets; 0 after
 * the timeout; -EINTR after a signal, SIGCONT too; -EPIPE if another program has taken the class
 * over. Packets that are kept longer than the class's watchdog count as unread: later ones that
 * would be stolen pass, until these are given back. A new configuration of the module, or a restart
 * of Kerb, is gone along with. */
int kerb_intercept_receive(struct kerb_intercept *k, struct kerb_packet *packets, int max,
			   int64_t timeout);

/* kerb_intercept_release gives packets back early, so that their room is free while the last ones
 * are being worked on. */
void kerb_intercept_release(struct kerb_intercept *k);

/* Who sent a packet, and what it was sent to. */
struct kerb_peer {
	uint8_t family;		  /* 4 or 6 */
	uint8_t address[16];	  /* of the sender; IPv4: the first 4 bytes */
	uint8_t own_address[16];  /* that the packet came to */
	uint16_t port, own_port;
};

/* kerb_intercept_reply answers a UDP packet of this class, with the addresses and ports of the
 * packet in each other's place. It needs no privilege: the answer goes through an ordinary UDP
 * socket, so it passes the network stack, and the kernel takes no source address but its own.
 * -EAGAIN if the socket's buffer is full. Not for link-local IPv6 addresses. */
int kerb_intercept_reply(struct kerb_intercept *k, const struct kerb_packet *p, const void *data,
			 size_t size);

/* kerb_intercept_send is kerb_intercept_reply for later, when the packet is no longer there: keep
 * what kerb_intercept_peer says of it. */
int kerb_intercept_peer(const struct kerb_packet *p, struct kerb_peer *peer);
int kerb_intercept_send(struct kerb_intercept *k, const struct kerb_peer *peer, const void *data,
			size_t size);

/* kerb_intercept_send_at is kerb_intercept_send for an answer that leaves at a time, ns of the
 * launch clock (SO_TXTIME). The queueing discipline of the interface holds it until then; others
 * than these two send it at once. fq, by CLOCK_MONOTONIC, which also T1 is of, sends it not before
 * its time, at once what is late already, and drops what is further ahead than its horizon (10 s).
 * etf, by CLOCK_TAI, hands it to the driver its delta before the time, and drops what is late. */
int kerb_intercept_send_at(struct kerb_intercept *k, const struct kerb_peer *peer,
			   const void *data, size_t size, uint64_t when);

/* kerb_intercept_launch_clock sets the launch clock: CLOCK_MONOTONIC unless set, or CLOCK_TAI,
 * which needs CAP_NET_ADMIN. */
int kerb_intercept_launch_clock(struct kerb_intercept *k, int clock);

/* Answers with a launch time. */
struct kerb_intercept_launches {
	uint64_t timed;	  /* that were sent, or would have been but for an error */
	uint64_t late;	  /* of these: their time was over when they were handed to the kernel */
	uint64_t dropped; /* that etf has dropped, by its reports; other drops are not reported */
};

/* kerb_intercept_launches also empties the error queues of sockets that answers with a launch time
 * were sent from, the program's own included. */
void kerb_intercept_launches(struct kerb_intercept *k, struct kerb_intercept_launches *l);

/* kerb_intercept_socket has answers sent from a UDP socket of the program, which is bound to the
 * port and stays the program's; one for each of IPv4 and IPv6. For other ports, an answer binds a
 * socket of its own, which takes no packets; that fails where the program, or another one, has the
 * port. */
int kerb_intercept_socket(struct kerb_intercept *k, int fd);

/* kerb_intercept_fd can be polled for packets in a loop of one's own; call kerb_intercept_arm
 * before, and if it returns 0, receive with a timeout of 0 when it is readable. 1: there are
 * packets already. */
int kerb_intercept_fd(const struct kerb_intercept *k);
int kerb_intercept_arm(struct kerb_intercept *k);

/* Changes of the class, effective with its next packet, until the program closes the class or the
 * next configuration comes. Linux 6.1. */
int kerb_intercept_start(struct kerb_intercept *k);
int kerb_intercept_stop(struct kerb_intercept *k); /* its packets pass, as if it were not there */
enum kerb_action { KERB_PASS = 0, KERB_DROP = 1, KERB_COPY = 3, KERB_STEAL = 4, KERB_MARK = 5 };
int kerb_intercept_action(struct kerb_intercept *k, enum kerb_action action);
int kerb_intercept_priority(struct kerb_intercept *k, uint32_t priority); /* of KERB_MARK */
int kerb_intercept_max_bytes(struct kerb_intercept *k, uint32_t bytes);
int kerb_intercept_deadline(struct kerb_intercept *k, uint64_t ns);
/* index: which of the class's port ranges; first > last: none. Ignored in a class with a
 * fallback. */
int kerb_intercept_ports(struct kerb_intercept *k, uint32_t index, uint16_t first, uint16_t last);
/* index: which condition on the payload; up to 8 bytes at an offset, of which mask counts; n 0:
 * none. */
int kerb_intercept_payload(struct kerb_intercept *k, uint32_t index, uint16_t offset,
			   const uint8_t *bytes, const uint8_t *mask, size_t n);

void kerb_intercept_stats(const struct kerb_intercept *k, struct kerb_intercept_stats *s);
const char *kerb_intercept_error(void);
uint64_t kerb_intercept_now(void); /* CLOCK_MONOTONIC, ns */

#ifdef __cplusplus
}
#endif
#endif
