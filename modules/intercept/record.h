/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The interface between the data plane of intercept and the programs that receive packets: records
 * in the ring of a class, the page of shared memory, control messages, and the protocol by which a
 * program opens a class. The same for the data plane, the kernel module, the C library and Go
 * (layout.go; a test compares them by BTF). Numbers are in host byte order, times in ns of
 * CLOCK_MONOTONIC.
 *
 * OPENING A CLASS
 * The agent listens on /run/kerb/modules/<module>.sock, SOCK_SEQPACKET, root:kerb 0660. Each
 * message is one JSON object.
 *
 *	-> {"open": "ctrl", "takeover": false, "pid": 4711}
 *		within 10 s of connecting; pid is only shown to people
 *	<- {"class": "ctrl", "slot": 2, "action": "steal", "delivery": "ringbuf", "ring": 1048576,
 *	    "maxBytes": 16384, "deadline": 100000, "watchdog": 100000000, "generation": 3,
 *	    "bell": 7, "mac": "02:00:00:00:00:01"}
 *		times in ns; with descriptors (SCM_RIGHTS): ring, state, controls. bell and mac: see
 *		AF_XDP; missing if there are none
 *	<- {"error": "class ctrl has a consumer (pid 4711): end it, or open it with takeover"}
 *		and the module closes the connection
 *
 * A class has one consumer: the program that has the connection. Unsolicited messages of the
 * module, after which it closes the connection:
 *
 *	<- {"event": "moved"}	a new configuration is in effect, with new rings. The records in the
 *				old one stay readable; no more are added. Open the class again: the
 *				records of the new ring come after those of the old one, and their
 *				seq starts at 0. Copy the statistics (icpt_state from received on)
 *				into the new page.
 *	<- {"event": "taken"}	another program has opened the class with takeover
 *
 * If it closes without an event, the control plane was restarted: keep the ring and open the class
 * again; if "generation" is the same, the descriptors are of the same maps.
 *
 * DESCRIPTORS
 *  - ring: BPF_MAP_TYPE_RINGBUF of "ring" bytes. Map page 0 (consumer position, u64, read and
 *    write), then page 1 (producer position, u64, read only) followed by the data pages twice. Each
 *    record is preceded by two u32; of the first, bit 31 is BUSY, bit 30 DISCARD (skip the record:
 *    it only woke the consumer), the rest the length: that of struct icpt_record and of a step of
 *    icpt_steps (see libbpf, ringbuf.c). The descriptor can be polled: EPOLLIN when there is a
 *    record; only a consumer that has set icpt_state.waiting is woken.
 *  - state: BPF_MAP_TYPE_ARRAY, mappable. Bytes 0 to 4095 are the struct icpt_state of the class.
 *  - controls: BPF_MAP_TYPE_USER_RINGBUF of ICPT_CONTROLS bytes (Linux 6.1): map page 0 (consumer
 *    position, read only), page 1 (producer position) and data pages twice, both read and write
 *    (see libbpf, user_ring_buffer). Messages are struct icpt_control; after submitting one, set
 *    icpt_state.doorbell to 1. A message takes effect as a whole, with the next packet of the
 *    chain; of several messages, that packet may be classified after only the first ones.
 *
 * AF_XDP
 * A program passes a socket that is bound to an interface and queue of the class on the same
 * connection:
 *
 *	-> {"xsk": {"ifindex": 7, "queue": 0}} with the socket		<- {"xsk": true} or
 *									{"error": "..."}
 *
 * Packets then arrive at the socket, with a struct icpt_meta before the frame. With a wake socket,
 *
 *	-> {"xsk": {"ifindex": 7, "queue": 0, "bell": true}} with the socket
 *
 * packets arrive in the ring and the socket only wakes the consumer, without the self-interrupt of
 * the CPU (irq_work) that a wake-up by the ring takes. With icpt_state.waiting ICPT_BY_SOCKET it
 * receives the stolen packet that wakes, or the start of it. The module offers this by "bell", the
 * ifindex of the only interface that it is attached to, whose MAC address is "mac": the ifindex may
 * be of another interface in the network namespace of the program. All sockets of a class are of
 * one interface and one purpose. */
#ifndef ICPT_RECORD_H
#define ICPT_RECORD_H

#include <linux/types.h>

#define ICPT_CLASSES  32   /* of a configuration */
#define ICPT_RINGS     16   /* classes with a ring, which programs can open; slots 0 to 15 */
#define ICPT_PAGE      4096 /* bytes for struct icpt_state */
/* bytes of the ring of control messages, but at least a page */
#define ICPT_CONTROLS 4096
#define ICPT_MAX_BYTES 16384 /* the most bytes of a frame that are delivered */

#define ICPT_EGRESS    (1 << 0) /* the service sent it; otherwise it is for the service */
#define ICPT_STOLEN    (1 << 1) /* it does not continue to the network stack */
#define ICPT_TRUNCATED (1 << 2) /* caplen < len */
#define ICPT_SEGMENTS  (1 << 3) /* an aggregate of several packets (GRO, GSO) */
#define ICPT_FRAGMENT  (1 << 4) /* an IP fragment: without ports, or without all of the payload */
#define ICPT_IP4       (1 << 5)
#define ICPT_IP6       (1 << 6)
#define ICPT_L4	       (1 << 7) /* l4 is a complete TCP, UDP, ICMP or ICMPv6 header */
/* bits 16 to 31: TCI of a VLAN tag that the kernel has removed from the frame; 0: none */
#define ICPT_TCI_SHIFT 16

/* One packet. The frame follows, starting with its Ethernet header: caplen bytes, then unused bytes
 * up to the step. With the 8 bytes of the ring before it, the header fills one cache line. */
struct icpt_record {
	/* number of the packet in the class, from 0; lost packets have one, too. Records of several
	 * CPUs may be out of order */
	__u64 seq;
	__u64 time; /* T1: when the data plane saw it; for egress, when it was sent */
	/* packets that found no room so far: the difference to the previous record is new */
	__u64 lost;
	__u32 len;     /* of the frame */
	__u32 caplen;  /* bytes of it in this record */
	/* offsets from the start of the frame: IP header, transport header, what follows it */
	__u16 l3, l4, payload;
	__u16 slot;    /* of the class */
	__u32 ifindex; /* of the interface of the chain, in the namespace of the node */
	__u32 flags;   /* ICPT_* */
	__u32 cpu;     /* on which the data plane handled it */
	/* thread that this CPU was running; 0: idle, or unknown (Linux before 6.17) */
	__u32 pid;
};

/* Bytes after the header: the smallest step that is not less than caplen. */
#define icpt_steps {64, 128, 256, 512, 1024, 1536, 2048, 4096, 9216, 16384}

/* Metadata before a frame that AF_XDP delivers; fields as in struct icpt_record. */
struct icpt_meta {
	__u64 seq, time;
	__u64 lost;
	__u16 l3, l4, payload, slot;
};

/* Histograms in ns, with the buckets of kerb/histogram.h: four for each power of two. A value
 * below 4 is its bucket; otherwise, with e = floor(log2(v)), the bucket is
 * (e - 1) * 4 + (v >> (e - 2) & 3). The last one has no upper bound. */
#define ICPT_BUCKETS 160 /* the last one starts at 1.75 * 2^40 ns, 32 minutes */

/* A packet that the consumer received after its deadline, with the state of the system. */
struct icpt_late {
	__u64 seq;
	__u64 t1, t2;
	/* ns for which the consumer was runnable and did not run since the previous record
	 * (schedstat); 0: unknown */
	__u64 waited;
	__u32 cpu1, cpu2; /* of the data plane and of the consumer */
	__u32 pid1;	  /* icpt_record.pid */
	__u32 queued;	  /* records of the same batch after it */
	__u32 voluntary,
		involuntary; /* context switches of the consumer since the previous record */
	char comm1[16];	     /* name of pid1, if the consumer may read it */
};

#define ICPT_LATES 16

/* What wakes a consumer. */
enum icpt_waiting {
	ICPT_AWAKE = 0,
	ICPT_BY_RING = 1,
	/* the wake socket of the packet's queue, or the ring if there is none */
	ICPT_BY_SOCKET = 2,
};

/* The page of a class. The first cache line is written by the module, except doorbell; the rest by
 * the consumer. The data plane trusts none of it. */
struct icpt_state {
	__u64 generation; /* of the configuration */
	__u64 deadline;	  /* ns, 0: none. T2 - T1 above it is late */
	__u64 watchdog;	  /* ns for which records may stay unread before packets pass */
	__u32 zero0;
	__u32 stopped;	/* 1: stopped by ICPT_OP_STOP */
	__u32 doorbell; /* 1: control messages are pending; set by the consumer */
	__u32 begun;	/* identity of the settings that deadline and watchdog are from */
	__u32 zero1[6];
	__u32 waiting; /* enum icpt_waiting: set it, check the ring again (with a full barrier in
			* between), then sleep: the next record wakes, and resets it to 0. While it
			* is 0, delivery makes no wake-up, which costs more than a record */
	__u32 pid;     /* thread that receives */
	__u64 heartbeat; /* when it last checked the ring */
	__u64 received;	 /* records */
	__u64 late;	 /* of these */
	__u64 missed;	 /* lost packets, by the records that it received */
	__u64 longest;	 /* the maximum of T2 - T1, ns */
	__u64 zero2[2];
	__u64 delay[ICPT_BUCKETS]; /* histogram of T2 - T1 */
	__u64 lates;		   /* entries so far; newest: last[(lates - 1) % ICPT_LATES] */
	struct icpt_late last[ICPT_LATES];
};

/* Control messages change the class of their ring until its consumer closes it or a new
 * configuration takes effect. */
enum icpt_op {
	ICPT_OP_START = 1,    /* ends ICPT_OP_STOP */
	ICPT_OP_STOP = 2,     /* packets of the class pass, as if it did not exist */
	ICPT_OP_ACTION = 3,   /* value: ICPT_PASS, ICPT_DROP, ICPT_COPY, ICPT_STEAL or ICPT_MARK */
	ICPT_OP_PRIORITY = 4, /* value: for ICPT_MARK */
	ICPT_OP_MAX_BYTES = 5,
	ICPT_OP_DEADLINE = 6, /* value: ns */
	/* index: which range; value: first << 16 | last destination port; first > last matches
	 * none. Ignored in a class with a fallback, which answers from the ports of the
	 * configuration */
	ICPT_OP_PORTS = 7,
	/* index: which condition; value: offset << 16 | length (0 to 8; 0: no condition); bytes and
	 * mask as in the packet */
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
