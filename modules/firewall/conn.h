/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Entries of tracked connections. */
#ifndef FW_CONN_H
#define FW_CONN_H

#include <linux/types.h>

#define FW_PEER_ACKED (1 << 0) /* acked is known */
#define FW_PEER_SCALE (1 << 1) /* its SYN had a window scale option */
#define FW_PEER_FIN   (1 << 2) /* what ends at end is its FIN; KERB_TCP_FIN << 2 */

/* One side of a TCP connection. Sequence numbers in host byte order. */
struct fw_peer {
	__u32 end;    /* after the last byte sent */
	__u32 maxend; /* after the last byte that the other side has allowed */
	__u32 maxwin; /* largest window offered, scaled; 0: this side has not been seen */
	__u32 acked;  /* highest acknowledgement number sent */
	__u8 scale;
	__u8 flags; /* FW_PEER_* */
	__u16 zero;
};

enum fw_state {
	FW_NEW = 0,	    /* packets from the initiator only */
	FW_REPLIED = 1,	    /* and an answer */
	FW_ESTABLISHED_ = 2, /* and a reply to the reply */
	FW_RESET = 3,	    /* ended by RST */
	FW_CLOSED = 4,	    /* both sides sent FIN and acknowledged the peer's FIN */
};

/* TCP picked up in midstream: window scales are unknown, so that windows are not checked */
#define FW_CONN_LEARNT (1 << 0)

struct fw_conn {
	__u64 seen; /* monotonic clock, to about a second */
	__u32 generation;
	__u8 state; /* enum fw_state */
	__u8 from;  /* direction of the first packet */
	__u8 fins;  /* what earlier versions have left: see conns.go; 0 in new entries */
	__u8 flags; /* FW_CONN_* */
	union {
		struct fw_peer peer[2]; /* TCP; by direction that it sends in */
		__u64 begun;		/* others; monotonic clock */
	};
};

/* Entries of an interface in the tables. */
struct fw_usage {
	__u64 established, opening;
	__u64 since; /* monotonic clock at the first packet without a connection */
};

#endif
