/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The classifier's config constants. config.go sets them. */
#ifndef CLS_SETTINGS_H
#define CLS_SETTINGS_H

#include <kerb/module.h>

enum cls_extractor {
	CLS_RPL = 0,
	CLS_FLOW = 1,
};

/* How 802.15.4 frames come. */
enum cls_frames {
	/* the packet is the frame, MAC header first: interfaces without Ethernet */
	CLS_FRAMES_RAW = 0,
	CLS_FRAMES_ETHERNET = 1, /* behind an Ethernet header with frames_eth_type */
	CLS_FRAMES_ZEP = 2,	 /* in UDP datagrams to or from zep_port, ZEP version 1 or 2 */
};

/* Frames whose security bit is set: their payload cannot be read. */
enum cls_secured {
	CLS_SECURED_PASS = 0,  /* counted, passed */
	/* the same, and a message of kind other of the node that the link source address names */
	CLS_SECURED_COUNT = 1,
	CLS_SECURED_DROP = 2,
};

enum cls_when {
	CLS_PER_WINDOW = 0, /* when a window (sliding: a quarter of it) has passed */
	CLS_PER_PACKET = 1, /* with each packet, over the window so far */
	CLS_EVERY_N = 2,    /* with each every-th packet of the source, over the window so far */
};

/* Where models run. */
enum cls_deferred {
	CLS_AT_ONCE = 0,     /* on the packet that makes an evaluation due */
	CLS_NEXT_PACKET = 1, /* on a later packet that comes after a pause of a tick of the clock */
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
	CLS_EVENTS_POSITIVES = 1, /* and for each evaluation that is against the source */
	CLS_EVENTS_ALL = 2,	  /* each evaluation */
};

KERB_CONFIG(__u8, extractor, CLS_RPL);
KERB_CONFIG(__u8, frames, CLS_FRAMES_RAW);
KERB_CONFIG(__u16, frames_eth_type, 0x809a); /* IEEE 802.15.4 in Ethernet */
KERB_CONFIG(__u16, zep_port, 17754);
/* bytes of checksum at the end of raw and Ethernet frames: 0 or 2. ZEP's always have 2 */
KERB_CONFIG(__u8, fcs_len, 0);
KERB_CONFIG(__u8, secured, CLS_SECURED_PASS);
/* frames of a sender with the same sequence number are one message for so long; 0: never */
KERB_CONFIG(__u64, repeat_ns, 250000000);
KERB_CONFIG(_Bool, by_peer, 0);		  /* flow: a source is a remote address, not a 5-tuple */
/* 0: from the first packet of the source on (flow, not per window) */
KERB_CONFIG(__u64, window_ns, 5000000000);
KERB_CONFIG(_Bool, sliding, 0);
/* how often windows are looked for whose source sends no more; 0: its next packet ends them */
KERB_CONFIG(__u64, lapse_ns, 500000000);
KERB_CONFIG(__u8, when, CLS_PER_WINDOW);
KERB_CONFIG(__u32, every, 16); /* of CLS_EVERY_N */
KERB_CONFIG(__u8, deferred, CLS_AT_ONCE);
KERB_CONFIG(__u8, action, CLS_EVENT);
/* how long the action lasts after the last evaluation against the source; 0: until told */
KERB_CONFIG(__u64, action_ns, 60000000000);
KERB_CONFIG(__u32, mark, 1);		    /* of CLS_MARK */
KERB_CONFIG(__u64, rate_cost, 100000000);   /* of CLS_RATE_LIMIT: ns per packet */
KERB_CONFIG(__u64, rate_burst, 1000000000); /* ns that a source may be ahead of it */
KERB_CONFIG(_Bool, watch, 0);		    /* all is judged and told, nothing is done */
/* hysteresis: so many of the last hits_of evaluations must be against a source */
KERB_CONFIG(__u8, hits_needed, 1);
KERB_CONFIG(__u8, hits_of, 3);		    /* at most 32 */
KERB_CONFIG(__u8, events, CLS_EVENTS_CHANGES);
KERB_CONFIG(__u32, capacity, 4096);	 /* max_entries of records */
KERB_CONFIG(__u32, probation_packets, 8); /* see struct cls_newcomer */
/* blocked at once; one more blows the fuse. max_entries of blocks is more than this */
KERB_CONFIG(__u32, fuse_sources, 64);
/* percent of the sources that are judged in a window, from fuse_least on; 100: no limit */
KERB_CONFIG(__u8, fuse_share, 50);
KERB_CONFIG(__u32, fuse_least, 2);	  /* so many blocked sources never are too large a share */
/* percent of a window's packets that may be dropped; 100: no limit */
KERB_CONFIG(__u8, fuse_packets, 100);

#endif
