/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The interface between data plane and control plane, except models (model.h) and config constants
 * (settings.h): sources and their statistics, blocks, the fuse, events.
 *
 * A source is what a model evaluates: a node of an RPL network, a flow, or the peer of flows. Times
 * are in ns of kerb_now(): CLOCK_MONOTONIC with the resolution of a timer tick. Sums only grow, by
 * atomic additions: a window is the difference between two points in time, so that nothing is lost
 * or counted twice when a window ends while another CPU counts. */
#ifndef CLS_MAPS_H
#define CLS_MAPS_H

#include <kerb/scratch.h>
#include <kerb/features.h>
#include "settings.h"

/* Key of records, newcomers, blocks, windows. Addresses as IPv6: IPv4 is ::ffff:a.b.c.d, a node of
 * an RPL network fe80::(its interface identifier), whichever prefix it uses. All bytes count: set
 * unused fields to zero. */
struct cls_source {
	__u8 addr[16];	     /* rpl: the node; flow: the remote end; by_peer: the remote address */
	__u8 local[16];	     /* flow: the service's end */
	__be16 port;	     /* flow: of addr; ICMP: 0 */
	__be16 local_port;   /* flow; ICMP: 0 */
	__u32 ifindex;
	__u16 pan; /* rpl: PAN identifier of the source, host byte order */
	__u8 proto; /* flow: IANA number, after extension headers */
	__u8 kind;  /* enum cls_extractor */
};

/* Sums of a record. */
enum cls_rpl_sum {
	CLS_RPL_DIS = 0,
	CLS_RPL_DIO = 1,
	CLS_RPL_DAO = 2,
	CLS_RPL_DAO_ACK = 3,
	CLS_RPL_CONTROL = 4,   /* RPL messages of other kinds */
	CLS_RPL_OTHER = 5,     /* messages other than RPL, such as data */
	CLS_RPL_REPEATS = 6,   /* frames that repeat a message */
	CLS_RPL_BYTES = 7,     /* of messages, including MAC header and FCS */
	CLS_RPL_MULTICAST = 8, /* RPL messages to the link's broadcast address */
	CLS_RPL_VERSIONS = 9,  /* DIOs with another DODAG version than the node's last DIO */
	CLS_RPL_RANKS = 10,    /* DIOs whose rank is below that of the node's previous DIO */
	CLS_RPL_SECURED = 11,
	CLS_RPL_FRAGMENTS = 12, /* later fragments; the first one is the message */
	CLS_RPL_GAPS = 13,	/* ms between messages */
	CLS_RPL_GAP_COUNT = 14,
};

enum cls_flow_sum {
	CLS_FLOW_PACKETS = 0, /* from the initiator of the flow; + 1: from the responder */
	CLS_FLOW_BYTES = 2,   /* the same; IP datagram, without padding */
	CLS_FLOW_SQUARES = 4, /* of lengths */
	CLS_FLOW_GAPS = 5,    /* us between packets, either direction */
	CLS_FLOW_GAP_SQUARES = 6,
	CLS_FLOW_GAP_COUNT = 7,
	/* packets with each flag, in the order of the TCP header: FIN SYN RST PSH ACK URG */
	CLS_FLOW_FIN = 8,
	CLS_FLOW_FRAGMENTS = 14,
	CLS_FLOW_PAYLOADS = 15, /* packets with a payload */
};

#define CLS_SUMS   16
#define CLS_SLICES 4 /* of a sliding window; a tumbling one is one slice. A power of two */

/* Minimum and maximum in a slice; low is above high if there was no value. */
struct cls_range {
	__u32 low, high;
};

struct cls_slice {
	__u64 sum[CLS_SUMS];	 /* at the beginning of the slice */
	struct cls_range length; /* flow: of packets; rpl: ranks that DIOs announced */
	struct cls_range gap;	 /* us (rpl: ms) between packets (messages) */
};

/* A received frame: its sender and sequence number, and its time. */
struct cls_seen {
	/* hash of the link source address, with the sequence number in the low byte; 0: none */
	__u32 tag;
	__u32 ms;
};

#define CLS_SEEN    4	     /* number of frames whose repetitions are recognized */
#define CLS_BEFORE  6	     /* number of sums whose value in the previous window is a feature */
#define CLS_ROLLING (1ULL << 63) /* in cls_record.slice: a CPU is closing the slice */

/* The state of a source. */
struct cls_record {
	__u64 first, last;		   /* when packets (messages) were counted */
	/* number of its current slice: time / (length of slices) */
	__u64 slice;
	__u64 judged;			   /* cls_fuse.window of its last evaluation */
	/* number of the last slice for which lapsing has an entry, plus 1 */
	__u64 armed;
	__u64 sum[CLS_SUMS];		   /* since first */
	struct cls_slice past[CLS_SLICES]; /* by number modulo CLS_SLICES */
	__u32 before[CLS_BEFORE];	   /* the first sums, over the last whole window */
	__u32 pending;			   /* packets since the last evaluation */
	__u32 hits;    /* bit 0: the last evaluation was against it, bit 1: the one before, ... */
	__u32 version; /* of the model of the last evaluation; 0: never evaluated */
	__u32 class;
	__s32 score;
	/* hits_needed of the last hits_of were against it, and since then not all for it */
	__u8 suspicious;
	__u8 opener;	      /* flow: 1: the service's side opened it */
	__u8 dodag_version;   /* of its last DIO, if has_dio */
	__u8 has_dio;
	__u16 rank;	      /* the same, host byte order */
	__be16 service_port;  /* flow: destination port of the opening packet */
	struct cls_seen seen[CLS_SEEN]; /* newest first */
	/* cls_config_id() of slice and past: records outlive a change of the config */
	__u32 span;
};

/* Protection against spoofed sources. Up to an eighth of the table's capacity per window, sources
 * get a record immediately. Beyond that they are newcomers: they get one after probation_packets
 * packets, or when they are seen again after a whole window, up to another eighth per window. So a
 * known source that is heard once in three windows is always among the used half of the table,
 * whatever other sources send. */
struct cls_newcomer {
	__u64 first;
	__u64 packets;
};

/* The source of a fragmented 6LoWPAN datagram: only the first fragment names it. Value: struct
 * cls_source. */
struct cls_datagram {
	__u64 link; /* source address of the MAC header, as on the air */
	__u32 ifindex;
	__u16 tag, size;
};

/* Value of blocks: the action on a source, until it expires. */
struct cls_block {
	__u64 since;
	__u64 until;   /* 0: until unblocked */
	__u64 packets; /* that matched it */
	__u64 dropped; /* of them */
	__u64 due;     /* CLS_RATE_LIMIT: theoretical arrival time of the next packet */
	__u32 version; /* of the model, 0: the operator */
	__u32 class;
	__s32 score;
	__u8 action; /* enum cls_action */
	__u8 zero[3];
};

enum cls_fuse_cause {
	CLS_FUSE_INTACT = 0,
	CLS_FUSE_SOURCES = 1, /* more than fuse_sources */
	CLS_FUSE_SHARE = 2,   /* more than fuse_share percent of the sources */
	CLS_FUSE_PACKETS = 3, /* more than fuse_packets percent of the packets */
};

/* Once the fuse has blown, no action is taken on packets any more, and blocks stay unchanged. The
 * control plane resets it: it empties blocks, then sets all of this to 0. */
struct cls_fuse {
	__u64 blown;  /* when */
	__u32 cause;  /* enum cls_fuse_cause */
	/* entries in blocks; atomically updated when one is added or deleted */
	__u32 blocked;
	__u64 window; /* number of the window of the following fields */
	__u32 judged; /* evaluated sources, except those in held */
	__u32 sources_before; /* in the previous window, including those that were blocked */
	__u64 packets, dropped; /* counted if fuse_packets is below 100 */
	__u32 admitted, promoted; /* sources that got a record at once, or as newcomers */
	__u32 held; /* blocked when the window began */
	__u32 zero;
};

/* Features, in the order of the names in features.go. */
enum cls_rpl_feature {
	CLS_F_DIS = 0, /* the first 6 are sums */
	CLS_F_MESSAGES = 6,
	CLS_F_REPEATS = 7,
	CLS_F_BYTES = 8,
	CLS_F_MULTICAST = 9,
	CLS_F_VERSIONS = 10,
	CLS_F_RANKS = 11,
	CLS_F_SECURED = 12,
	CLS_F_FRAGMENTS = 13,
	CLS_F_DIS_SHARE = 14,
	CLS_F_DIO_SHARE = 15,
	CLS_F_DAO_SHARE = 16,
	CLS_F_DIS_BEFORE = 17,
	CLS_F_DIO_BEFORE = 18,
	CLS_F_DAO_BEFORE = 19,
	CLS_F_GAP_MIN = 20,
	CLS_F_GAP_MAX = 21,
	CLS_F_GAP_MEAN = 22,
	CLS_F_RANK_MIN = 23,
	CLS_F_RANK_MAX = 24,
};

enum cls_flow_feature {
	CLS_F_PACKETS_FORWARD = 0,
	CLS_F_PACKETS_BACKWARD = 1,
	CLS_F_BYTES_FORWARD = 2,
	CLS_F_BYTES_BACKWARD = 3,
	CLS_F_LENGTH_MIN = 4,
	CLS_F_LENGTH_MAX = 5,
	CLS_F_LENGTH_MEAN = 6,
	CLS_F_LENGTH_DEVIATION = 7,
	CLS_F_FLOW_GAP_MIN = 8,
	CLS_F_FLOW_GAP_MAX = 9,
	CLS_F_FLOW_GAP_MEAN = 10,
	CLS_F_FLOW_GAP_DEVIATION = 11,
	CLS_F_FIN = 12, /* and the other flags in the order of the TCP header */
	CLS_F_FLOW_FRAGMENTS = 18,
	CLS_F_PAYLOADS = 19,
	CLS_F_DURATION = 20,
	CLS_F_PROTOCOL = 21,
	CLS_F_PORT = 22,
	CLS_F_LENGTH_FORWARD_MEAN = 23,
	CLS_F_LENGTH_BACKWARD_MEAN = 24,
	CLS_F_PACKETS = 25,
	CLS_F_BACKWARD_SHARE = 26,
};

#define CLS_VALUES 32 /* features of an extractor */

/* Pending evaluations: entries of due (CLS_NEXT_PACKET, CLS_TIMER). */
struct cls_due {
	__u64 time; /* end of the window */
	struct cls_source source;
	__s32 values[CLS_VALUES]; /* features, in the order of the extractor's names */
};

/* Value of windows, for the control plane (CLS_USER), which deletes entries that it has read and
 * writes blocks. */
struct cls_window {
	__u64 time; /* end of the window */
	__s32 values[CLS_VALUES];
};

enum cls_event_kind {
	CLS_EVENT_EVALUATED = 0,  /* nothing has changed */
	CLS_EVENT_SUSPICIOUS = 1, /* the source has become suspicious; action is the one taken */
	CLS_EVENT_CLEARED = 2,	  /* no longer suspicious; a block lasts until it expires */
	CLS_EVENT_FUSE = 3,	  /* the fuse has blown, on this source */
};

/* Event in verdicts. */
struct cls_event {
	__u64 time; /* end of the window */
	struct cls_source source;
	__u8 kind;    /* enum cls_event_kind */
	/* enum cls_action that is taken; CLS_EVENT: none, as in watch mode, for allowed sources,
	 * with the fuse blown */
	__u8 action;
	__u8 allowed; /* the source is on the allow-list */
	__u8 cause;   /* enum cls_fuse_cause, of CLS_EVENT_FUSE */
	__u32 version; /* of the model */
	__u32 class;
	__s32 score;
	__u32 hits;
	__s32 values[CLS_VALUES];
};

/* Indices of counts. */
enum cls_count {
	CLS_COUNT_PACKETS = 0,	 /* examined by the extractor */
	CLS_COUNT_NOT_OURS = 1,	 /* not frames of the configured kind, passed */
	CLS_COUNT_TRUNCATED = 2, /* ended within a header, passed */
	CLS_COUNT_MALFORMED = 3, /* reserved modes, impossible lengths, passed */
	/* no source to count it for: acknowledgements, beacons, commands, no source address */
	CLS_COUNT_NO_SOURCE = 4,
	CLS_COUNT_SECURED = 5,
	CLS_COUNT_REPEATS = 6,
	CLS_COUNT_MESSAGES = 7, /* counted for a source */
	CLS_COUNT_PROBATION = 8, /* of newcomers, not counted for them */
	CLS_COUNT_ADMITTED = 9,	 /* sources that got a record */
	CLS_COUNT_EVALUATED = 10,
	/* pauses of a source of a window (sliding: a quarter) or more: nothing to evaluate */
	CLS_COUNT_EMPTY = 11,
	CLS_COUNT_NO_MODEL = 12, /* evaluations without a model */
	CLS_COUNT_POSITIVE = 13, /* evaluations against a source */
	/* evaluations for which due or windows was full, windows for which lapsing was full */
	CLS_COUNT_NO_ROOM = 14,
	CLS_COUNT_ALLOWED = 15,	 /* actions not taken: the source is on the allow-list */
	/* packets that would have been dropped, limited or marked without watch mode or the fuse */
	CLS_COUNT_WATCHED = 16,
	CLS_COUNT_MARKED = 17,
	CLS_COUNT_LIMITED = 18, /* dropped over the rate */
	CLS_COUNT_DROPPED = 19,
	CLS_COUNT_DROPPED_SECURED = 20,
	/* Decisions of the shadow model compared with those of the live one: */
	CLS_COUNT_BOTH_HARMLESS = 21,
	CLS_COUNT_BOTH_POSITIVE = 22,
	CLS_COUNT_ONLY_LIVE = 23,
	CLS_COUNT_ONLY_SHADOW = 24,
	CLS_COUNT_SAME_CLASS = 25,
	CLS_COUNTS = 32,
};

#define CLS_NOTE_CLASS 1 /* version of the model in bits 24-47, class in 16-23, score in 0-15 */

/* Drop reasons, named in kerb.yaml. */
#define CLS_DROP_CLASSIFIED (KERB_DROP_MODULE_FIRST + 0)
#define CLS_DROP_SECURED    (KERB_DROP_MODULE_FIRST + 1)

#define CLS_ALLOWED    1024
#define CLS_DUE	       256
#define CLS_EVENT_RING (1 << 18)

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct cls_source);
	__type(value, struct cls_record);
} records SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct cls_source);
	__type(value, struct cls_newcomer);
} newcomers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct cls_datagram);
	__type(value, struct cls_source);
} datagrams SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct cls_source);
	__type(value, struct cls_block);
} blocks SEC(".maps");

/* Key of allowed: prefixes of addr or local of sources, after the half of the config. */
struct cls_prefix {
	__u32 len; /* including the bits of half */
	__u32 half;
	__u8 addr[16];
};

/* Looked up only before an action is taken on a source. The control plane deletes blocks of sources
 * that become allowed. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 2 * CLS_ALLOWED);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct cls_prefix);
	__type(value, __u32);
} allowed SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE); /* the control plane atomically corrects blocked */
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cls_fuse);
} fuse SEC(".maps");

/* By role of the model: bit mask of the harmless classes, for which no action is taken. Written by
 * the control plane before a model is used; 0: not written yet. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, KERB_MODEL_ROLES);
	__type(key, __u32);
	__type(value, __u64);
} harmless SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, CLS_DUE);
	__type(value, struct cls_due);
} due SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct cls_source);
	__type(value, struct cls_window);
} windows SEC(".maps");

/* Locks, held briefly for changes that only one CPU may make; fetching atomic operations need Linux
 * 5.12. Index 0 is the fuse's. */
struct cls_lock {
	struct bpf_spin_lock lock;
};

#define CLS_LOCKS 64 /* a power of two */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CLS_LOCKS);
	__type(key, __u32);
	__type(value, struct cls_lock);
} locks SEC(".maps");

/* A window with packets, and its end: entries of lapsing, which the timer reads. */
struct cls_lapse {
	__u64 due;
	struct cls_source source;
};

/* In the order in which windows end, as all of them end at multiples of their length. Twice as many
 * as sources: those of the previous window may still wait. Without room a window ends with the next
 * packet of its source. */
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, 8192);
	__type(value, struct cls_lapse);
} lapsing SEC(".maps");

/* Started by the first packet of a program; a config map, so that each program has its own. */
struct cls_timer {
	struct bpf_timer timer;
	__u64 started; /* without timers: a packet does the timer's work now */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cls_timer);
} timers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, CLS_COUNTS);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

KERB_EVENTS(verdicts, CLS_EVENT_RING);

#endif
