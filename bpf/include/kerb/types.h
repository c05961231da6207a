/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Definitions that chain, modules and agent share: verdicts, parse outcomes, drop reasons, and the
 * packet context. The Go mirror is internal/kerbabi; a test compares both by BTF. */
#ifndef KERB_TYPES_H
#define KERB_TYPES_H

#include <linux/bpf.h>
#include <linux/types.h>

/* The verdict of a module on a packet. Other values are handled by the failure policy of the
 * module: drop or pass. */
enum kerb_verdict {
	KERB_NEXT = 0,	   /* continue with the next module, or the network stack */
	KERB_DROP = 1,	   /* drop the packet; kerb_drop() sets the reason */
	KERB_REPLY = 2,	   /* send it out of the interface that it came from */
	KERB_REDIRECT = 3, /* send it to the interface that kerb_redirect() set */
};

/* The result of parsing. The head of the chain counts all but KERB_PARSE_OK. parse.h documents the
 * contents of the packet context for each. */
enum kerb_parse {
	/* L3 and L4 found (a later fragment has no L4: see KERB_F_FRAG_LATER) */
	KERB_PARSE_OK = 0,
	KERB_PARSE_NOT_IP = 1,	 /* neither IPv4 nor IPv6, for example ARP: l3 is set */
	KERB_PARSE_SHORT_L2 = 2, /* the frame ends within the Ethernet or VLAN header */
	/* more than two VLAN tags, including one that the kernel has removed */
	KERB_PARSE_VLAN_DEPTH = 3,
	/* the frame ends within the IP header, including options and extension headers */
	KERB_PARSE_SHORT_L3 = 4,
	KERB_PARSE_BAD_VERSION = 5, /* the version field does not match the EtherType */
	KERB_PARSE_BAD_IHL = 6,	    /* IPv4 header length below 20 bytes */
	KERB_PARSE_BAD_LENGTH = 7,  /* the IP length is below its header or beyond the frame */
	KERB_PARSE_EXT_DEPTH = 8,   /* more IPv6 extension headers than KERB_MAX_EXT */
	/* the frame or the IP length ends within the transport header, including TCP options */
	KERB_PARSE_SHORT_L4 = 9,
	/* invalid transport header: TCP data offset below 5, UDP length below 8 or beyond the
	 * datagram */
	KERB_PARSE_BAD_L4 = 10,
	KERB_PARSE_OUTCOMES = 11,
};

/* Drop reasons. 0 to 31 are defined here, 32 to 63 by the module that drops (names in its
 * manifest). */
enum kerb_drop_reason {
	KERB_DROP_UNSPEC = 0,
	KERB_DROP_POLICY = 1,	    /* by a rule or the default policy */
	KERB_DROP_MALFORMED = 2,    /* the packet cannot be parsed */
	KERB_DROP_FRAGMENT = 3,	    /* a fragment, which the policy forbids */
	KERB_DROP_EXTENSION = 4,    /* an IPv6 extension header that the policy forbids */
	KERB_DROP_STATE = 5,	    /* does not belong to a tracked connection */
	KERB_DROP_TABLE_FULL = 6,   /* a table is full */
	KERB_DROP_RATE = 7,	    /* over a rate limit */
	KERB_DROP_NO_ROUTE = 8,	    /* no destination */
	KERB_DROP_TOO_BIG = 9,	    /* exceeds the MTU of the next hop */
	KERB_DROP_NO_MEMORY = 10,   /* a helper failed to allocate memory */
	KERB_DROP_BAD_VERDICT = 11, /* the module returned an invalid verdict, and fails closed */
	KERB_DROP_UNAVAILABLE = 12, /* the module could not be loaded, and fails closed */
	KERB_DROP_MODULE_FIRST = 32,
	KERB_DROP_REASONS = 64,
};
#define KERB_DROP_REASON 0xff /* of struct kerb_pkt.reason; a note is above (kerb_drop_noted) */

#define KERB_F_FRAG_FIRST (1 << 0) /* first fragment: with L4, the payload is incomplete */
#define KERB_F_FRAG_LATER (1 << 1) /* later fragment: no L4 */
#define KERB_F_OPTIONS	  (1 << 2) /* IPv4 options are present */
#define KERB_F_EXT	  (1 << 3) /* IPv6 extension headers other than Fragment are present */
#define KERB_F_L4	  (1 << 4) /* l4 points to a complete TCP, UDP, ICMP or ICMPv6 header */
#define KERB_F_FRAG	  (KERB_F_FRAG_FIRST | KERB_F_FRAG_LATER)

#define KERB_MAX_EXT  6	    /* IPv6 extension headers followed */
#define KERB_MAX_HDRS 0x1ff /* no header starts further into the frame than this */
/* the largest offset of kerb_at and, on XDP, of kerb_load_bytes, as the verifier requires a
 * bound */
#define KERB_MAX_OFFSET 0x3fff

/* Accesses of struct kerb_pkt in modules are relocated (CO-RE): the linker finds fields by name, so
 * that another version of Kerb may have them in another order. Programs that it does not link, and
 * modules of Kerb itself that fill in a context of their own, define KERB_FIXED_LAYOUT. */
#ifdef KERB_FIXED_LAYOUT
#define KERB_RELOCATED
#else
#define KERB_RELOCATED __attribute__((preserve_access_index))
#endif

/* The packet context: filled at the head of the chain, passed to each module, on the stack of the
 * entry. Access its fields only: a copy of the whole struct, and a variable of this type, have the
 * layout that the module was compiled with. ctx is always the first member. Offsets are bytes from
 * the start of the frame (data). 64-bit members come first, each in its own stack slot of 8 bytes,
 * as the verifier of old kernels tracks pointers and bounds in such slots only. */
struct kerb_pkt {
	void *ctx;	  /* struct xdp_md * or struct __sk_buff * */
	void *data;	  /* start of the frame (L2), packet pointer */
	void *data_end;	  /* end of the linear part, packet pointer */
	__u64 l3;	  /* offset of the IP header (or of what follows L2) */
	/* offset of the transport header if KERB_F_L4, otherwise of what follows the IP headers */
	__u64 l4;
	__u32 ifindex;	  /* interface that the chain is attached to */
	__u32 len;	  /* length of the whole frame including L2 and paged data */
	__u16 eth_type;	  /* EtherType after VLAN tags, host byte order */
	__u16 vlan;	  /* TCI of the outermost VLAN tag, host byte order; 0: none */
	__u8 family;	  /* 4, 6, or 0 if it is not IP */
	__u8 proto;	  /* transport protocol after extension headers (IANA number) */
	__u8 flags;	  /* KERB_F_* */
	__u8 outcome;	  /* enum kerb_parse */
	__u32 l4_len;	  /* bytes from l4 to the end of the IP datagram (padding excluded) */
	__u32 reason;	  /* enum kerb_drop_reason and a note, for KERB_DROP */
	__u32 to_ifindex; /* target of KERB_REDIRECT */
	__u32 to_flags;	  /* KERB_TO_*, and a label */
} KERB_RELOCATED;

/* into the namespace of the veth's peer (TC ingress of the node only) */
#define KERB_TO_PEER	(1 << 0)
#define KERB_TO_INGRESS (1 << 1) /* as if it had been received there (TC only) */
/* the kernel looks up route and neighbour on that interface, and writes the L2 header (TC only) */
#define KERB_TO_NEIGH	(1 << 2)
#define KERB_TO_MAP	(1 << 3) /* where the module's bpf_redirect_map() said (XDP only) */
/* Set by kerb_redirect_deferred(): the following modules see the packet first (TC only). */
#define KERB_TO_DEFERRED (1 << 4)
/* With KERB_TO_DEFERRED: the packet is parsed again before the next module, as this one has added
 * or removed headers. */
#define KERB_TO_REPARSE (1 << 5)

/* In to_flags above the flags: the label of kerb_deliver(); 0: none. */
#define KERB_LABEL_SHIFT 16
#define KERB_TO_FLAGS	 ((1 << KERB_LABEL_SHIFT) - 1)

#endif
