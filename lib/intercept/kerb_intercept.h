/* SPDX-License-Identifier: Apache-2.0 */
/* Client library of Kerb's module `intercept`, which delivers packets to user space within
 * microseconds. C11 and C++, Linux 5.10 and later, needs libc only.
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
 * Return values: functions that return int return 0 or more, or a negative errno such as -EAGAIN;
 * kerb_intercept_error then describes the error. Threads: a receiver is not safe for concurrent
 * use; different threads may use different receivers. Units: times are ns of CLOCK_MONOTONIC,
 * sizes bytes. Byte order: numbers are in host byte order, addresses and frames are as on the
 * wire. */
#ifndef KERB_INTERCEPT_H
#define KERB_INTERCEPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A receiver: one open class of the module. */
struct kerb_intercept;

/* What the receiver does while there is no packet. */
enum kerb_wait {
	/* spins only shortly before the next packet is due and sleeps otherwise: the median latency
	 * of spinning without occupying the CPU; wait.h has the details */
	KERB_WAIT_ADAPTIVE,
	KERB_WAIT_SPIN,	 /* polls the ring: occupies the CPU */
	KERB_WAIT_SLEEP, /* blocks: each packet costs a wake-up */
};

/* Options of a receiver; all zero are the defaults. */
struct kerb_intercept_options {
	enum kerb_wait wait;
	/* KERB_WAIT_ADAPTIVE: the longest mean gap between irregular packets, in ns, for which the
	 * receiver spins; it sleeps through longer ones. 0: 1 ms. */
	uint64_t reach;
	/* KERB_WAIT_ADAPTIVE: if not 0, packets may wait for this time, in ns, to be received as
	 * one batch, which uses the least CPU time. Set it to the time between the arrival of a
	 * packet and its deadline, less what processing takes. */
	uint64_t patience;
	/* KERB_WAIT_ADAPTIVE: for how many of 1000 regular packets the receiver is to be running
	 * when they arrive; the others wake it. Lower values use less CPU time and have a longer
	 * latency tail. 0: 975; at most 999. */
	uint32_t awake;

	/* For the calling thread, which has to be the one that receives: */
	bool pin; /* set its CPU affinity to cpu */
	int cpu;
	/* SCHED_FIFO priority, 1 to 99 (needs CAP_SYS_NICE or RLIMIT_RTPRIO); 0: SCHED_OTHER with
	 * nice -20, if permitted, and time slices of 100 us (Linux 6.12) */
	int fifo;
	bool keep; /* leave priority and time slices unchanged */
	/* mlockall: no page fault of this process waits for a disk; needs CAP_IPC_LOCK or
	 * RLIMIT_MEMLOCK */
	bool lock_memory;
	/* Ignored with KERB_WAIT_SPIN. Idle CPUs poll instead of halting (a PM QoS request by
	 * /dev/cpu_dma_latency, which needs root), as with the kernel parameter idle=poll, until
	 * the receiver has waited for a second without a packet. A wake-up then takes 5 us instead
	 * of 40 on a virtual machine. It costs energy and, on a virtual machine, CPU time of the
	 * host, but delays no task of this machine. It has little effect where the first idle state
	 * is not POLL (arm64, no cpuidle driver). */
	bool idle_poll;

	/* Open the class even if another program has it open. That program's receiver returns
	 * -EPIPE from then on. */
	bool takeover;
	/* Receive stolen packets of this interface and queue through AF_XDP, which needs
	 * CAP_NET_RAW. NULL: packets come through the ring; where possible, and if the class has
	 * `delivery: auto`, AF_XDP sockets only wake the receiver. */
	const char *device;
	uint32_t queue;
	bool copy; /* AF_XDP: copy mode even if the driver supports zero-copy */
};

/* A packet. frame stays valid until the next call of kerb_intercept_receive, _release or _arm. */
struct kerb_packet {
	const uint8_t *frame; /* starts with the Ethernet header */
	uint32_t len;	      /* of the original frame */
	uint32_t caplen;      /* bytes of it at frame; less than len if truncated */
	/* offsets from frame: IP header, transport header, and what follows the transport header */
	uint16_t l3, l4, payload;
	uint16_t vlan;	      /* TCI of a VLAN tag that the kernel has removed; 0: none */
	uint32_t flags;	      /* KERB_PACKET_* */
	uint32_t ifindex;     /* of the interface that the module is attached to */
	uint64_t seq;	      /* number in the class, from 0; lost packets have one, too */
	uint64_t sent;	      /* T1: time at which the data plane saw the packet */
	uint64_t received;    /* T2: time at which this receiver got it */
	uint64_t lost;	      /* packets that found no room since the previous one */
};

#define KERB_PACKET_EGRESS    (1u << 0) /* the service sent it; otherwise it is for the service */
#define KERB_PACKET_STOLEN    (1u << 1) /* it does not continue to the network stack */
#define KERB_PACKET_TRUNCATED (1u << 2) /* caplen < len */
#define KERB_PACKET_SEGMENTS  (1u << 3) /* an aggregate of several packets (GRO, GSO) */
#define KERB_PACKET_FRAGMENT  (1u << 4) /* an IP fragment */
#define KERB_PACKET_IP4	      (1u << 5)
#define KERB_PACKET_IP6	      (1u << 6)
#define KERB_PACKET_L4	      (1u << 7) /* l4 is a complete TCP, UDP, ICMP or ICMPv6 header */

/* Statistics. The first five count packets of the class, for all its receivers together; the rest
 * is how this receiver waited. */
struct kerb_intercept_stats {
	uint64_t received, lost; /* packets */
	uint64_t late;		 /* packets that were received after the deadline */
	uint64_t longest;	 /* the maximum of T2 - T1, ns */
	uint64_t deadline;	 /* of the class, ns after T1; 0: none */

	/* how often it slept for a packet, rested to leave the CPU to other tasks, and polled an
	 * empty ring */
	uint64_t slept, rested, spun;
	/* how often other tasks kept the CPU for more than 0.5 ms; not counted with
	 * KERB_WAIT_SLEEP */
	uint64_t held_up;
};

/* kerb_intercept_open opens a class of a module and prepares the calling thread as options say.
 * k: is set to the receiver, to be released by kerb_intercept_close. module: the name of a Module,
 * or, with a slash in it, the path of its socket; a name stands for /run/kerb/modules/<name>.sock.
 * The socket is open to root and the group kerb. class_name: a class with action copy or steal.
 * options: NULL for the defaults.
 *
 * Returns 0; -ENOENT or -ECONNREFUSED if the module does not run; -EACCES if this user may not open
 * its socket; -EBUSY if another program has the class open; -EPROTO if the module refuses, for
 * example because it has no such class; or the error of an option, such as -EPERM without the
 * privilege that it needs. */
int kerb_intercept_open(struct kerb_intercept **k, const char *module, const char *class_name,
			const struct kerb_intercept_options *options);

/* kerb_intercept_open_device opens a receiver for a class of Kerb's kernel module (kmod/). fd: an
 * open /dev/kerb-intercept after ICPT_ATTACH, which the receiver closes; after an error it stays
 * the caller's. ring: the size of its ring, icpt_rule.ring. Returns 0 or a negative errno. */
int kerb_intercept_open_device(struct kerb_intercept **k, int fd, size_t ring,
			       const struct kerb_intercept_options *options);

/* kerb_intercept_close closes the class and frees the receiver. */
void kerb_intercept_close(struct kerb_intercept *k);

/* kerb_intercept_receive releases the packets of the previous call and waits for new ones. max: how
 * many packets fit into the array. timeout: ns; 0 polls, a negative one waits indefinitely.
 *
 * Returns the number of packets; 0 after the timeout; -EINTR after a signal, including SIGCONT;
 * -EPIPE if another program has taken the class over; -ENODEV if the interface of a class of the
 * kernel module was removed.
 *
 * Packets that are held for longer than the watchdog of the class count as unread: packets that
 * would be stolen continue to the network stack until the held ones are released. The receiver
 * follows new configurations of the module and restarts of the agent by itself: the call that does
 * so also waits for the module's answer, at most 10 s. */
int kerb_intercept_receive(struct kerb_intercept *k, struct kerb_packet *packets, int max,
			   int64_t timeout);

/* kerb_intercept_release releases the packets of the last kerb_intercept_receive early, so that
 * their room in the ring is free again; their frames must not be accessed any more. */
void kerb_intercept_release(struct kerb_intercept *k);

/* The addresses of a packet, for an answer. */
struct kerb_peer {
	uint8_t family;		  /* 4 or 6 */
	uint8_t address[16];	  /* source address of the packet; IPv4: the first 4 bytes */
	uint8_t own_address[16];  /* its destination address */
	uint16_t port, own_port;  /* its source and destination port, host byte order */
};

/* kerb_intercept_reply sends a UDP datagram to the sender of a UDP packet of this class, with the
 * packet's addresses and ports swapped. It needs no privilege: an ordinary UDP socket sends it, so
 * it passes the network stack, and the kernel refuses source addresses that are not local. data,
 * size: the payload. Does not block.
 *
 * Returns 0; -EAGAIN if the buffer of the socket is full; -EINVAL if the packet is not UDP to the
 * service; -EADDRINUSE if another socket has the port (see kerb_intercept_socket). Packets from
 * link-local IPv6 addresses cannot be answered. */
int kerb_intercept_reply(struct kerb_intercept *k, const struct kerb_packet *p, const void *data,
			 size_t size);

/* kerb_intercept_peer stores the addresses of a UDP packet for an answer after the packet has been
 * released. Returns 0, or -EINVAL if it cannot be answered. */
int kerb_intercept_peer(const struct kerb_packet *p, struct kerb_peer *peer);

/* kerb_intercept_send is kerb_intercept_reply for a stored peer. */
int kerb_intercept_send(struct kerb_intercept *k, const struct kerb_peer *peer, const void *data,
			size_t size);

/* kerb_intercept_send_at is kerb_intercept_send for an answer with a launch time (SO_TXTIME). when:
 * ns of the launch clock. The queueing discipline of the interface holds the packet until then:
 *  - fq (CLOCK_MONOTONIC, as T1) sends it no earlier than its time, sends late packets at once, and
 *    drops packets beyond its horizon (10 s);
 *  - etf (CLOCK_TAI) passes it to the driver its delta before its time, and drops late packets;
 *  - others send it at once. */
int kerb_intercept_send_at(struct kerb_intercept *k, const struct kerb_peer *peer,
			   const void *data, size_t size, uint64_t when);

/* kerb_intercept_launch_clock sets the launch clock: CLOCK_MONOTONIC, which is the default, or
 * CLOCK_TAI, which needs CAP_NET_ADMIN. Returns 0, or -EINVAL for other clocks; a missing privilege
 * is an error (-EPERM) of the next kerb_intercept_send_at. */
int kerb_intercept_launch_clock(struct kerb_intercept *k, int clock);

/* Statistics of answers with a launch time. */
struct kerb_intercept_launches {
	uint64_t timed;	  /* that were sent, or failed after the launch time was set */
	uint64_t late;	  /* of these: the launch time had passed when it was sent */
	uint64_t dropped; /* reported as dropped by etf; other drops are not reported */
};

/* kerb_intercept_launches reads the statistics of answers with a launch time. It empties the error
 * queues (MSG_ERRQUEUE) of the sockets that sent them, also of one that was passed to
 * kerb_intercept_socket. */
void kerb_intercept_launches(struct kerb_intercept *k, struct kerb_intercept_launches *l);

/* kerb_intercept_socket makes answers from a port leave through a UDP socket of the program. fd: a
 * socket that is bound to the port; it stays the caller's, and has to stay open. One for IPv4 and
 * one for IPv6, or one for both. For other ports, the first answer binds a socket, which receives
 * nothing; that fails with -EADDRINUSE if any program has bound the port. Returns 0 or a negative
 * errno. */
int kerb_intercept_socket(struct kerb_intercept *k, int fd);

/* kerb_intercept_fd returns a file descriptor to poll for packets (POLLIN) in the program's own
 * event loop. Call kerb_intercept_arm before each poll; when the descriptor is readable, call
 * kerb_intercept_receive with a timeout of 0. The receiver closes the descriptor.
 *
 * A new configuration of the module, or a restart of the agent, does not make the descriptor
 * readable: call kerb_intercept_receive from time to time, such as each second, also when the
 * descriptor is not, and then kerb_intercept_fd, as the descriptor may have changed. */
int kerb_intercept_fd(const struct kerb_intercept *k);

/* kerb_intercept_arm releases all packets and makes the next one wake a poll of kerb_intercept_fd.
 * Returns 0; or 1 if packets are there already: receive them instead. */
int kerb_intercept_arm(struct kerb_intercept *k);

/* Control messages: changes of the class, from its next packet on, until the program closes the
 * class or the module gets a new configuration. The data plane applies them when it handles a
 * packet. Linux 6.1. They return 0; -ENOTSUP on older kernels and for the kernel module; -EAGAIN if
 * too many wait for a packet. */

/* kerb_intercept_stop makes packets of the class pass as if it did not exist. */
int kerb_intercept_stop(struct kerb_intercept *k);
/* kerb_intercept_start ends kerb_intercept_stop. */
int kerb_intercept_start(struct kerb_intercept *k);

/* What happens to packets of the class; KERB_MARK sets skb->priority. */
enum kerb_action { KERB_PASS = 0, KERB_DROP = 1, KERB_COPY = 3, KERB_STEAL = 4, KERB_MARK = 5 };
int kerb_intercept_action(struct kerb_intercept *k, enum kerb_action action);
/* kerb_intercept_priority sets the value for KERB_MARK. */
int kerb_intercept_priority(struct kerb_intercept *k, uint32_t priority);
/* kerb_intercept_max_bytes sets how many bytes of each frame are delivered: 1 to 16384. */
int kerb_intercept_max_bytes(struct kerb_intercept *k, uint32_t bytes);
/* kerb_intercept_deadline sets the deadline, ns after T1; 0: none. */
int kerb_intercept_deadline(struct kerb_intercept *k, uint64_t ns);
/* kerb_intercept_ports sets a range of destination ports, in host byte order. index: which of the
 * ranges of the class, from 0. first > last matches nothing. The module ignores it in a class with
 * a fallback. */
int kerb_intercept_ports(struct kerb_intercept *k, uint32_t index, uint16_t first, uint16_t last);
/* kerb_intercept_payload sets a condition on the payload: the n bytes (0 to 8) at offset, ANDed
 * with mask, equal bytes ANDed with mask. index: which of the conditions of the class, from 0. n 0
 * removes the condition. -EINVAL if n is larger. */
int kerb_intercept_payload(struct kerb_intercept *k, uint32_t index, uint16_t offset,
			   const uint8_t *bytes, const uint8_t *mask, size_t n);

/* kerb_intercept_stats reads the statistics of the class and of this receiver. */
void kerb_intercept_stats(const struct kerb_intercept *k, struct kerb_intercept_stats *s);
/* kerb_intercept_error returns a description of the last error of the calling thread, for people.
 * It stays valid until the next error. */
const char *kerb_intercept_error(void);
/* kerb_intercept_now returns the time by CLOCK_MONOTONIC in ns, comparable to kerb_packet.sent. */
uint64_t kerb_intercept_now(void);

#ifdef __cplusplus
}
#endif
#endif
