/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the kernel part of intercept and the programs that receive packets share: records in a
 * class's ring, the page of memory that both write, control messages, and how a program comes by
 * them. The same for the data plane, the kernel module, the C library and Go (layout.go; a test
 * compares them by BTF). Numbers are in host byte order, times in ns of CLOCK_MONOTONIC.
 *
 * OPENING A CLASS
 * The agent listens on /run/kerb/modules/<module>.sock, SOCK_SEQPACKET, root:kerb 0660. Each
 * message is one JSON object.
 *
 *	-> {"open": "ctrl", "takeover": false, "pid": 4711}
 *		within 10 s of connecting; pid is for people
 *	<- {"class": "ctrl", "slot": 2, "action": "steal", "delivery": "ringbuf", "ring": 1048576,
 *	    "maxBytes": 16384, "deadline": 100000, "watchdog": 100000000,
 *	    "bell": 7, "mac": "02:00:00:00:00:01"}
 *		times in ns; with descriptors (SCM_RIGHTS): ring, state, controls. bell and mac: see
 *		AF_XDP; 0 and empty: none
 *	<- {"error": "class ctrl has a consumer (pid 4711): end it, or open it with takeover"}
 *		and the connection ends
 *
 * A class has one consumer: who has the connection. When it ends, the class has none. Without
 * having been asked the module says
 *
 *	<- {"event": "moved"}	a new configuration runs, with new rings. What is in the old one
 *				stays readable; nothing more comes
 *				into it. Open the class again: records of the new ring come after
 *				those of the old one, and their
 *				seq begins at 0. Copy your numbers (icpt_state from received on)
 *				into the new page.
 *	<- {"event": "taken"}	another program has opened the class with takeover
 *
 * and ends the connection. If it ends without an event, the control plane was restarted: keep your
 * ring and open again, with the same descriptors' contents if "generation" is the same.
 *
 * DESCRIPTORS
 * ring: BPF_MAP_TYPE_RINGBUF of "ring" bytes. Map page 0 (consumer position, u64, read and write),
 * then page 1 (producer position, u64, read only) followed by the data pages twice (see libbpf,
 * ringbuf.c: two u32 before each record; of the first, bit 31 is BUSY, bit 30 DISCARD (skip it: it
 * was only to wake you), the rest the length: struct icpt_record and a step of icpt_steps). The
 * descriptor can be polled: EPOLLIN when there is a record; it is woken only for one that waits,
 * see icpt_state. state: BPF_MAP_TYPE_ARRAY, mappable. Bytes 0 to 4095 are the struct icpt_state of
 * the class. controls: BPF_MAP_TYPE_USER_RINGBUF of ICPT_CONTROLS bytes (Linux 6.1): map page 0
 * (consumer position, read only), page 1 (producer position) and data pages twice, both read and
 * write (see libbpf, user_ring_buffer). Messages are struct icpt_control; after one is submitted,
 * set icpt_state.doorbell to 1. The next packet that the module sees finds it changed: all that a
 * message says or nothing, while of several messages it may meet the first ones only.
 *
 * AF_XDP: a socket that is bound to an interface and queue of the class is handed over on the same
 * connection,
 *	-> {"xsk": {"ifindex": 7, "queue": 0}} with the socket		<- {"xsk": true} or
 *									{"error": "..."}
 * Packets then come to it with a struct icpt_meta before the frame.
 *
 *	-> {"xsk": {"ifindex": 7, "queue": 0, "bell": true}} with the socket
 * Then packets come into the ring, and the socket only wakes: a ring's wake-up goes through an
 * interrupt of the CPU to itself, a socket's does not. It gets the frame, or the begin of it, of a
 * stolen packet that wakes, for icpt_state.waiting ICPT_BY_BELL. The module offers that by "bell",
 * the ifindex of the one interface that it is on, whose address is "mac": the number may mean
 * another one where the program is. All sockets of a class are for one interface and purpose. */
#ifndef ICPT_RECORD_H
#define ICPT_RECORD_H

#include <linux/types.h>

#define ICPT_CLASSES  32   /* of a configuration */
#define ICPT_RINGS    16   /* of these, classes that programs can open; slots 0 to ICPT_RINGS - 1 */
#define ICPT_PAGE     4096 /* bytes of struct icpt_state */
/* bytes of the ring of control messages; a page where pages are larger */
#define ICPT_CONTROLS 4096
#define ICPT_MAX_BYTES 16384 /* of a frame are delivered at most */

#define ICPT_EGRESS    (1 << 0) /* the service has sent it; else it is for the service */
#define ICPT_STOLEN    (1 << 1) /* no other program gets this packet */
#define ICPT_TRUNCATED (1 << 2) /* caplen < len */
#define ICPT_SEGMENTS  (1 << 3) /* stands for several packets (GRO, GSO) */
#define ICPT_FRAGMENT  (1 << 4) /* an IP fragment: without ports, or without all of the payload */
#define ICPT_IP4       (1 << 5)
#define ICPT_IP6       (1 << 6)
#define ICPT_L4	       (1 << 7) /* l4 is a complete TCP, UDP, ICMP or ICMPv6 header */
/* the upper half: TCI of a VLAN tag that the kernel has taken out of the frame */
#define ICPT_TCI_SHIFT 16

/* One packet. The frame follows, from its Ethernet header on: caplen bytes, then whatever the step
 * leaves. Eight bytes of the ring are before it, so that each record begins with its header in one
 * cache line. */
struct icpt_record {
	/* of the packets for this ring from 0 on, lost ones too. Several CPUs may come in another
	 * order */
	__u64 seq;
	__u64 time;    /* T1: when the kernel part saw it; for egress, when it was sent */
	/* packets for this ring that found no room, so far: compare with the last record's */
	__u64 lost;
	__u32 len;     /* of the frame */
	__u32 caplen;  /* bytes of it that are here */
	/* offsets from the start of the frame; payload is behind the transport header */
	__u16 l3, l4, payload;
	__u16 slot;    /* of the class */
	__u32 ifindex; /* that the chain is attached to, on the node's side */
	__u32 flags;   /* ICPT_* */
	__u32 cpu;     /* where the kernel part saw it */
	/* thread that this CPU was running, 0: idle, or not known (Linux before 6.17) */
	__u32 pid;
};

/* Bytes that follow the header: the smallest step that holds caplen. */
#define icpt_steps {64, 128, 256, 512, 1024, 1536, 2048, 4096, 9216, 16384}

/* Before a frame that AF_XDP delivers. */
struct icpt_meta {
	__u64 seq, time;
	__u64 lost;
	__u16 l3, l4, payload, slot;
};

/* Histograms in ns, with the buckets of kerb/histogram.h: four for each power of two. Below 4 the
 * value is its bucket; else, with e = floor(log2(v)), the bucket is
 * (e - 1) * 4 + (v >> (e - 2) & 3). The last one has all that is longer. */
#define ICPT_BUCKETS 160 /* the last one begins at 1.75 * 2^40 ns, 32 minutes */

/* A packet that the consumer received after its deadline, with the state of the system. */
struct icpt_late {
	__u64 seq;
	__u64 t1, t2;
	/* ns that the consumer was runnable and did not run since the record before (schedstat); 0:
	 * not known */
	__u64 waited;
	__u32 cpu1, cpu2; /* of the kernel part and of the consumer */
	__u32 pid1;	  /* icpt_record.pid */
	__u32 queued;	  /* records that waited behind it */
	__u32 voluntary, involuntary; /* context switches of the consumer since the record before */
	char comm1[16];	  /* name of pid1 where the consumer may know */
};

#define ICPT_LATES 16

enum icpt_waiting {
	ICPT_AWAKE = 0,
	ICPT_BY_RING = 1,
	/* an AF_XDP socket of the packet's queue wakes, or the ring where there is none */
	ICPT_BY_BELL = 2,
};

/* One class's page. The first line is the module's, but for the doorbell, the rest the consumer's;
 * the data plane believes none of it. */
struct icpt_state {
	__u64 generation; /* of the configuration */
	__u64 deadline;	  /* ns, 0: none. T2 - T1 above it is late */
	__u64 watchdog;	  /* ns that records may wait before the class's packets pass */
	__u32 zero0;
	__u32 stopped;	  /* 1: by a control message */
	__u32 doorbell;	  /* 1: there is a control message */
	__u32 begun;	  /* identity of the values that deadline and watchdog are of */
	__u32 zero1[6];
	__u32 waiting; /* enum icpt_waiting: set it, examine the ring again, then sleep: the next
			* record wakes, and sets it to 0. While it is 0 nothing wakes: spinning
			* costs the sender nothing */
	__u32 pid;     /* thread that receives */
	__u64 heartbeat; /* when it last examined the ring */
	__u64 received;	 /* records */
	__u64 late;	 /* of these */
	__u64 missed;	 /* lost packets that were reported to it */
	__u64 longest;	 /* T2 - T1, ns */
	__u64 zero2[2];
	__u64 delay[ICPT_BUCKETS]; /* T2 - T1 */
	__u64 lates;		   /* so far; the last is in last[(lates - 1) % ICPT_LATES] */
	struct icpt_late last[ICPT_LATES];
};

/* Control messages change the class whose ring they come through, until its program leaves it or
 * the next configuration comes. */
enum icpt_op {
	ICPT_OP_START = 1,    /* continue after ICPT_OP_STOP */
	ICPT_OP_STOP = 2,     /* packets of the class pass, as if it were not there */
	ICPT_OP_ACTION = 3,   /* value: ICPT_PASS, ICPT_DROP, ICPT_COPY, ICPT_STEAL or ICPT_MARK */
	ICPT_OP_PRIORITY = 4, /* value: for ICPT_MARK */
	ICPT_OP_MAX_BYTES = 5,
	ICPT_OP_DEADLINE = 6, /* value: ns */
	/* index: which range; value: first << 16 | last destination port; first > last: none.
	 * Ignored in a class with a fallback: the kernel answers as the configuration's port */
	ICPT_OP_PORTS = 7,
	/* index: which condition; value: offset << 16 | bytes (0 to 8; 0: none); bytes and mask in
	 * memory order */
	ICPT_OP_PAYLOAD = 8,
};

enum icpt_action {
	ICPT_PASS = 0,
	ICPT_DROP = 1,
	ICPT_ANSWER = 2, /* by an application of the responder */
	ICPT_COPY = 3,
	ICPT_STEAL = 4,
	ICPT_MARK = 5,
	ICPT_FORWARD = 6,
};

struct icpt_control {
	__u32 op; /* enum icpt_op */
	__u32 index;
	__u64 value;
	__u8 bytes[8], mask[8];
};

#endif
