/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The config: constants, and tunables, which change without a new program. config.go sets both. */
#ifndef CLS_SETTINGS_H
#define CLS_SETTINGS_H

#include <kerb/module.h>

enum cls_extractor {
	CLS_RPL = 0,
	CLS_FLOW = 1,
};

/* Encapsulation of 802.15.4 frames. */
enum cls_frames {
	/* the packet is the frame, MAC header first: interfaces without Ethernet */
	CLS_FRAMES_RAW = 0,
	CLS_FRAMES_ETHERNET = 1, /* after an Ethernet header with frames_eth_type */
	CLS_FRAMES_ZEP = 2,	 /* in UDP datagrams to or from zep_port, ZEP version 1 or 2 */
};

/* Frames whose security bit is set: their payload cannot be read. */
enum cls_secured {
	CLS_SECURED_PASS = 0,  /* counted, passed */
	/* the same, and a message of kind other of the node with the link source address */
	CLS_SECURED_COUNT = 1,
	CLS_SECURED_DROP = 2,
};

enum cls_when {
	CLS_PER_WINDOW = 0, /* when a window (sliding: a quarter of it) has passed */
	CLS_PER_PACKET = 1, /* with each packet, over the window so far */
	CLS_EVERY_N = 2,    /* with every n-th packet of the source, over the window so far */
};

/* Where models are evaluated. */
enum cls_deferred {
	CLS_AT_ONCE = 0,     /* on the packet that makes an evaluation due */
	CLS_NEXT_PACKET = 1, /* on a later packet that arrives after a pause of a clock tick */
	CLS_TIMER = 2,	     /* on a timer, off the packets' path */
	CLS_USER = 3,	     /* in the control plane, which reads windows */
};

enum cls_action {
	CLS_EVENT = 0,
	CLS_MARK = 1, /* skb->mark, on TC: control.go has such configs run there */
	CLS_RATE_LIMIT = 2,
	CLS_DROP = 3,
};

enum cls_events {
	/* when a source becomes suspicious or stops being so, and when the fuse blows */
	CLS_EVENTS_CHANGES = 0,
	CLS_EVENTS_POSITIVES = 1, /* and for each evaluation against the source */
	CLS_EVENTS_ALL = 2,	  /* each evaluation */
};

KERB_CONFIG(__u8, extractor, CLS_RPL);
KERB_CONFIG(__u8, frames, CLS_FRAMES_RAW);
KERB_CONFIG(__u16, frames_eth_type, 0x809a); /* IEEE 802.15.4 in Ethernet */
KERB_CONFIG(__u16, zep_port, 17754);
/* bytes of checksum at the end of raw and Ethernet frames: 0 or 2. ZEP's always have 2 */
KERB_CONFIG(__u8, fcs_len, 0);
KERB_CONFIG(__u8, secured, CLS_SECURED_PASS);
/* frames of a sender with the same sequence number are one message for this long; 0: never */
KERB_CONFIG(__u64, repeat_ns, 250000000);
KERB_CONFIG(_Bool, by_peer, 0);		  /* flow: a source is a remote address, not a 5-tuple */
/* 0: from the first packet of the source on (flow, not per window) */
KERB_CONFIG(__u64, window_ns, 5000000000);
KERB_CONFIG(_Bool, sliding, 0);
/* how often ended windows of silent sources are searched for; 0: its next packet ends them */
KERB_CONFIG(__u64, lapse_ns, 500000000);
KERB_CONFIG(__u8, when, CLS_PER_WINDOW);
KERB_CONFIG(__u32, every, 16); /* of CLS_EVERY_N */
KERB_CONFIG(__u8, deferred, CLS_AT_ONCE);
KERB_CONFIG(__u32, capacity, 4096); /* max_entries of records */
/* packets are counted: fuse_packets is below 100. A constant, for all packets pay for it */
KERB_CONFIG(_Bool, packet_fuse, 0);

/* Not read for a packet of a known source without an action and without a due evaluation. */
struct cls_tunables {
	/* how long the action lasts after the last evaluation; 0: until unblocked */
	__u64 action_ns;
	__u64 rate_cost;  /* of CLS_RATE_LIMIT: ns per packet */
	__u64 rate_burst; /* burst: ns that a source may be ahead */
	/* Q15: an evaluation is against a source if its class is not harmless and its score is at
	 * least this */
	__s32 raise;
	/* Q15: against a source that is suspicious already, the score may be as low as this. Above
	 * 32768: never */
	__s32 clear;
	__u32 mark;		 /* of CLS_MARK */
	__u32 probation_packets; /* see struct cls_newcomer */
	/* maximum number of blocks; one more blows the fuse. max_entries of blocks is more than
	 * this */
	__u32 fuse_sources;
	__u32 fuse_least; /* this many blocked sources are never too large a share */
	/* percent of the sources evaluated in a window, from fuse_least on; 100: no limit */
	__u8 fuse_share;
	/* percent of a window's packets that may be dropped; 100: no limit */
	__u8 fuse_packets;
	__u8 action; /* enum cls_action */
	_Bool watch; /* evaluate and report, but take no action */
	/* hysteresis: so many of the last hits_of evaluations must be against a source */
	__u8 hits_needed;
	__u8 hits_of; /* 1 to 32 */
	__u8 events;  /* enum cls_events */
};

KERB_TUNABLES(struct cls_tunables);

#endif
