/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The maps of the proxy, and their writers. maps.go mirrors them in Go; a test compares both by
 * BTF.
 *
 *	vips, ports, ranges, slots, instances, owners, locals, interfaces, homes, names	the control
 *											plane
 *	turns, instance_stats, sessions, pending, shares, fragments, asked, counts
 *									the data plane; the control
 *									plane ages and corrects
 *	unknown								the data plane sends, the
 *									control plane reads
 *
 * Addresses and ports are in network byte order, all else in the host's. Index 0 of instances and
 * of locals stands for none. Times are of the monotonic clock, ns. */
#ifndef PX_MAPS_H
#define PX_MAPS_H

#define PX_VIPS	      65536
#define PX_PORTS      65536
#define PX_RANGES     16
#define PX_SLOTS      (1 << 20)
#define PX_INSTANCES  (1 << 17)
#define PX_LOCALS     4096
#define PX_HOMES      (2 * PX_LOCALS)
#define PX_SESSIONS   (2 * 65536) /* two entries per session */
#define PX_PENDING    (2 * 65536)
#define PX_NAMES      65536
#define PX_FRAGMENTS  4096
#define PX_ASKED      4096
#define PX_UNKNOWN    (1 << 20) /* PX_ASK_SERVICE packets of one service leave room */

/* An IPv6 address, or an IPv4 one as ::ffff:a.b.c.d (RFC 4291, 2.5.5.2). */
struct px_addr {
	__be32 word[4];
};

/* How a virtual address chooses among its slots. Weighted and closest are round robin too: the
 * control plane writes the run. */
enum px_policy {
	PX_TURNS = 0,	    /* round robin over the slots */
	/* the instance with the fewest sessions, among at most PX_SCAN slots from the next one
	 * on */
	PX_LEAST = 1,
	PX_HASH_SOURCE = 2, /* by the client's address: slots are a Maglev table */
	PX_HASH_FLOW = 3,   /* by addresses, protocol and ports: slots are a Maglev table */
};

/* number of slots that PX_LEAST compares; if there are more, the next session compares others */
#define PX_SCAN 16

/* only the ports in ports are served; otherwise every port and protocol, with the port unchanged */
#define PX_VIP_PORTS	(1 << 0)
/* known not to exist until expires: answered with an ICMP error */
#define PX_VIP_NEGATIVE (1 << 1)
/* stands for one instance, which sends from this address: packets to it may be replies, to any
 * port */
#define PX_VIP_ANSWERS	(1 << 2)
/* a client's new session gets the instance of its last one, for some time */
#define PX_VIP_AFFINITY (1 << 3)
/* an instance has its own target ports */
#define PX_VIP_TARGETS	(1 << 4)
/* some instance does not serve all ports: px_vip_of_port() */
#define PX_VIP_SPLIT	(1 << 5)

/* Value of vips, by px_addr, or px_port_addr() for one port. A changed run of slots is written
 * before it, and the old run is not reused for a while. */
struct px_vip {
	/* PX_VIP_NEGATIVE: when the address becomes unknown again. PX_VIP_AFFINITY: PX_AFFINITY_NS
	 * and PX_AFFINITY_OWNER; one field, so that the layout stays the same. Otherwise 0. */
	__u64 expires;
	__u32 id;      /* index in turns and key in ports; below PX_VIPS */
	__u32 first;   /* run of slots */
	__u32 count;   /* its length; 0: no instance, answered with an ICMP error */
	__u8 policy;   /* enum px_policy */
	__u8 flags;    /* PX_VIP_* */
	__u16 zero;
};

/* how long after the beginning of a client's session its next one gets the same instance; seconds
 * in the lower half of expires */
#define PX_AFFINITY_NS(v)    ((__u64)(__u32)(v)->expires * 1000000000)
/* never 0; a hash of the virtual service's name: an address that moves to another virtual service
 * is not served by instances of the previous one */
#define PX_AFFINITY_OWNER(v) ((__u32)((v)->expires >> 32))

/* Key of ports; the value is the port at the instances. ICMP echo needs none. SCTP ports cannot
 * change: key = value. */
struct px_port {
	__u32 vip; /* id; PX_OF_INSTANCE, PX_NOT_OF_INSTANCE: index of the instance */
	__be16 port;
	__u8 proto; /* IANA number */
	__u8 of;    /* 0, PX_OF_INSTANCE: a target port of its own, PX_NOT_OF_INSTANCE */
};
#define PX_OF_INSTANCE	   1
#define PX_NOT_OF_INSTANCE 2 /* gets no new session to the port; only if the vip has affinity */

/* Addresses that may be virtual: those in no vip are requested. address & mask == prefix. IPv4
 * masks begin with 96 ones. */
struct px_range {
	struct px_addr prefix, mask;
};

struct px_ranges {
	__u32 count;
	__u32 zero;
	struct px_range range[PX_RANGES];
};

#define PX_DRAINING (1 << 0) /* no new sessions */
#define PX_GONE	    (1 << 1) /* instance removed: TCP is reset, anything else chooses again */
/* connects to it fail: no new sessions, unless a run of slots contains it nevertheless */
#define PX_EJECTED  (1 << 2)

/* Where an instance is. */
struct px_place {
	struct px_addr addr6; /* all zero: none */
	__be32 addr4;	      /* 0: none */
	/* index in locals; 0: not on this node, or without the proxy on its interface. May change
	 * in place */
	__u32 local;
};

/* An instance keeps its index for its lifetime, and gets another place when it is redeployed: the
 * control plane writes the inactive place, then, in a second update, the new generation. An index
 * is reused for another instance only after it has been PX_GONE for a while, and with another
 * generation. */
struct px_instance {
	__u32 generation; /* place[generation & 1] is active */
	__u32 flags;	  /* PX_DRAINING, PX_GONE */
	struct px_place place[2];
};

/* By index of the instance. The control plane corrects sessions when it ages them, and sets rtt to
 * 0 to restart its measurement. */
struct px_instance_stats {
	__s64 sessions; /* open now: for PX_LEAST */
	__u64 opened;	/* sessions ever */
	/* ns from SYN to SYN/ACK, moving average (weight 1/8 for each new one), 0: not measured */
	__u64 rtt;
	__u64 answers;	/* TCP connections that the instance accepted */
	__u64 failures; /* SYNs that it refused or left unanswered, of sessions with PX_JUDGED */
};

/* no module but the proxy sees packets to it: redirect them into its namespace (redirect_peer) */
#define PX_LOCAL_PEER (1 << 0)

/* A service of this node that has the proxy on its interface. Only flags and mac may change while
 * ifindex stays. */
struct px_local {
	__u32 ifindex; /* on the node's side; 0: free */
	/* of the interface inside; all zero: unknown, packets to it take the ordinary path */
	__u8 mac[6];
	__u8 flags;    /* PX_LOCAL_* */
	__u8 zero;
};

enum px_hook {
	PX_EGRESS = 0,	/* from the service */
	PX_INGRESS = 1, /* to it */
	/* Not the key of a packet: an entry of sessions with the last instance of a client. In the
	 * key, src is the client, dst the virtual address, ifindex the client's interface, dport
	 * and proto those of the virtual service, 0 if it names no ports. In the value, instance,
	 * seen (when the last session began), other (PX_AFFINITY_OWNER) and state are used:
	 * PX_ANSWERED if a session has been answered since the instance was chosen; otherwise the
	 * control plane removes it after a minute. It counts as one session of the interface. */
	PX_AFFINITY = 2,
};

/* Key of sessions: a packet as it is seen on an interface. Each session has two entries: one for
 * what its client sends, as it leaves the client; one for the instance's replies, as they leave the
 * instance if it is local, otherwise as they reach the client. ICMP echo has the identifier as
 * source port and the type of the request as destination port; in replies they are swapped. */
struct px_flow {
	struct px_addr src, dst;
	__be16 sport, dport; /* 0 without ports */
	__u32 ifindex;	     /* on which it is met */
	__u8 proto;
	__u8 hook; /* enum px_hook */
	__u16 zero;
};

#define PX_REVERSE (1 << 0) /* the entry for the instance's replies */
#define PX_HAIRPIN (1 << 1) /* the client is the instance: it sees itself as the virtual address */
/* the instance is not local: its replies are seen on the way to the client */
#define PX_FAR	   (1 << 2)
/* the virtual service names its ports: a failed connect counts against the instance */
#define PX_JUDGED  (1 << 3)
/* the client is an instance, and sends from its virtual address (names) */
#define PX_NAMED   (1 << 4)
/* the virtual address has affinity */
#define PX_STICKY  (1 << 5)

/* State of a session. Both entries have all of it; only the forward one is exact. */
#define PX_ANSWERED   (1 << 0) /* by the instance; TCP: with SYN and ACK */
#define PX_CLIENT_FIN (1 << 1)
#define PX_SERVER_FIN (1 << 2)
#define PX_RESET      (1 << 3) /* by either side */
/* both FINs or a reset: no longer counted in px_instance_stats.sessions */
#define PX_CLOSED     (1 << 4)

/* How a packet changes: its ports to sport and dport, and
 *	forward:	destination := addr
 *	reverse:	source := addr
 *	hairpin:	source := the old destination, destination := addr, both ways
 *	named:		also the client's address to the virtual one of it and back, but for answers
 *			from other nodes, where that has happened
 * The key of the other entry is the reversed rewritten packet, as seen on interface other: on
 * ingress if this entry is the forward one of a PX_FAR session, otherwise on egress. If a PX_FAR
 * session is named, its replies go from the instance's virtual address to the client's own. */
struct px_session {
	__u64 seen;	     /* when last used, by either side; accurate to PX_TICK */
	__u64 opened;	     /* forward: time of the SYN, 0 once its reply was timed */
	/* forward: the instance's; reverse: the virtual one; hairpin, reverse: the client's */
	struct px_addr addr;
	__be16 sport, dport; /* the new ports; ICMP echo: as in px_flow */
	/* index; 0: a connection to the instance's own address, which only needs another source
	 * port */
	__u32 instance;
	/* of the instance when the session was created or moved to its new place */
	__u32 generation;
	__u32 other;	     /* ifindex on which packets of the other direction are seen */
	/* index in locals of the receiver of the changed packet; 0: the bridge or the stack
	 * forwards it */
	__u32 local;
	__u32 tick;	     /* jiffies / PX_TICK when seen was written; data plane only */
	__u8 flags;	     /* PX_REVERSE ... */
	__u8 state;	     /* PX_ANSWERED ... */
	__u16 zero;
	__u32 zero2;
};

/* Key of names. */
struct px_name_of {
	struct px_addr addr;
	__u32 ifindex;
};

/* not used for new sessions */
#define PX_RETIRED (1 << 0)
/* by a virtual address */
#define PX_VIRTUAL (1 << 1)

/* in struct px_name_of instead of an ifindex, with the index of an instance; the address is then
 * zero except for the last word, which is 1 for IPv4 */
#define PX_BY_INSTANCE (1U << 31)

/* Names of instances: from an instance's own address and interface to the virtual address that
 * stands for it alone, and vice versa; from an address of an instance on another node and 0, and
 * from any instance's index, to its virtual address. */
struct px_name {
	struct px_addr other;
	__u32 flags; /* PX_RETIRED, PX_VIRTUAL */
};

/* By index in locals: the usage by clients behind an interface. Index 0: the sum of all interfaces,
 * and of those that are no local. The other fields count within a window of 2^30 ns; if two CPUs
 * start a window at once, they may lose a few. */
struct px_share {
	__u64 sessions; /* in the table sessions */
	__u32 window;
	__u32 opened; /* sessions begun and not answered: at most pending_budget */
	__u32 closed; /* sessions that moved back to pending: the same limit */
	__u32 asked;  /* packets to unknown addresses: at most PX_ASK_SERVICE */
};

#define PX_TICK 256 /* jiffies: 0.26 s at 1000 Hz, 1 s at 250 Hz, 2.6 s at 100 Hz */

/* A fragmented datagram: later fragments have no ports and follow the first one. The value is the
 * key by which the first one was looked up in sessions. */
struct px_fragment {
	struct px_addr src, dst;
	__be32 id;
	__u32 ifindex;
	__u8 proto; /* 0 for IPv6, which reassembles without it (RFC 8200, 4.5) */
	__u8 hook;
	__u16 zero;
};

struct px_fragment_of {
	__u64 seen;
	struct px_flow flow;
	__u32 zero;
};

/* Key of asked: one service's scan does not use up the requests of another one. */
struct px_ask {
	struct px_addr addr;
	__u32 ifindex;
};

/* Recent requests of an interface for an unknown address: at most PX_ASK_MOST packets per PX_ASK_NS
 * reach the control plane, and PX_ASK_SERVICE for all addresses. */
struct px_asked {
	__u64 since;
	__u64 packets;
};

#define PX_ASK_MOST    64
#define PX_ASK_SERVICE 256
#define PX_ASK_NS      (1ULL << 30)

/* Event in the ring buffer unknown: a packet to an address that may be virtual and is unknown. It
 * was dropped, and the control plane sends it again once the address is known. */
struct px_unknown {
	__u32 ifindex;	/* of the service that sent it */
	__u32 len;	/* of frame, 0: too long to be held */
	__u16 l3, l4;	/* offsets of the IP and the transport header in frame */
	__u8 family;	/* 4 or 6 */
	__u8 proto;	/* transport protocol */
	__u8 flags;	/* KERB_F_* */
	/* 1: the sender left the transport checksum to its device: complete it before the frame is
	 * sent again */
	__u8 partial;
	struct px_addr dst;
	__u8 frame[];
};

#define PX_HELD_MAX 9216 /* maximum length of a held frame in bytes */

/* Indices of counts. */
enum px_count {
	PX_COUNT_OPENED = 0,	   /* sessions */
	PX_COUNT_RESELECTED = 1,   /* sessions that lost their instance and got another one */
	PX_COUNT_MOVED = 2,	   /* sessions that followed an instance to its new place */
	PX_COUNT_RESET = 3,	   /* TCP sessions that could not, and were reset */
	PX_COUNT_UNKNOWN = 4,	   /* packets to unknown addresses, sent to the control plane */
	/* those that were not: more than PX_ASK_MOST, too long, or the ring buffer was full */
	PX_COUNT_UNANSWERED = 5,
	PX_COUNT_NEGATIVE = 6,	   /* packets to addresses known not to exist */
	/* to virtual addresses without an instance that takes new sessions */
	PX_COUNT_NO_INSTANCE = 7,
	PX_COUNT_NO_PORT = 8,	   /* to ports that the virtual service does not have */
	/* sessions with another source port: the instance has one from elsewhere with the same */
	PX_COUNT_CLASH = 9,
	/* TCP in midstream without a known session, if the instance is not certain */
	PX_COUNT_NO_SESSION = 10,
	PX_COUNT_FRAGMENT = 11,	   /* later fragments to virtual addresses without a first one */
	PX_COUNT_TABLE_FULL = 12,  /* sessions that found no room or no free source port */
	/* rejected sessions: the interface has too many without a reply */
	PX_COUNT_OVER_QUOTA = 13,
	/* answered sessions that stay in pending: the interface's share of sessions is used up */
	PX_COUNT_CROWDED = 14,
	/* TCP sessions made in the middle of a connection: only one instance can have it */
	PX_COUNT_RECOVERED = 15,
	PX_COUNTS = 16,
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PX_VIPS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct px_addr);
	__type(value, struct px_vip);
} vips SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PX_PORTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct px_port);
	__type(value, __be16);
} ports SEC(".maps");

/* One for each half of the config. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct px_ranges);
} ranges SEC(".maps");

/* Runs of indices of instances. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PX_SLOTS);
	__uint(map_flags, BPF_F_MMAPABLE); /* the control plane writes runs as memory */
	__type(key, __u32);
	__type(value, __u32);
} slots SEC(".maps");

/* By id of the vip: whose turn is next. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PX_VIPS);
	__type(key, __u32);
	__type(value, __u64);
} turns SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PX_INSTANCES);
	__type(key, __u32);
	__type(value, struct px_instance);
} instances SEC(".maps");

/* By index of the instance: hash of its identity, 0: free. Used only by the control plane, which
 * finds its instances again by it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PX_INSTANCES);
	__type(key, __u32);
	__type(value, __u64);
} owners SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PX_INSTANCES);
	__uint(map_flags, BPF_F_MMAPABLE); /* the control plane changes sessions atomically */
	__type(key, __u32);
	__type(value, struct px_instance_stats);
} instance_stats SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PX_LOCALS);
	__type(key, __u32);
	__type(value, struct px_local);
} locals SEC(".maps");

/* Ifindex to index in locals. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PX_LOCALS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u32);
} interfaces SEC(".maps");

/* Address of a service of this node to the ifindex of its interface: ICMP errors of the node's own
 * stack about packets to it belong to sessions that are seen there. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PX_HOMES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct px_addr);
	__type(value, __u32);
} homes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PX_NAMES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct px_name_of);
	__type(value, struct px_name);
} names SEC(".maps");

/* Sessions that were answered and are not closed, both entries of each, and affinities. Nothing is
 * evicted: sessions for which there is no room, or beyond the share of their client's interface,
 * stay in pending; an affinity is then not remembered. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PX_SESSIONS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct px_flow);
	__type(value, struct px_session);
} sessions SEC(".maps");

/* Sessions without a reply, and closed ones for their last packets: a flood of new or of short
 * connections evicts only others of its kind, and not before there was time for a reply (struct
 * px_share). */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, PX_PENDING);
	__type(key, struct px_flow);
	__type(value, struct px_session);
} pending SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PX_LOCALS);
	/* the control plane atomically counts what it removes */
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct px_share);
} shares SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, PX_FRAGMENTS);
	__type(key, struct px_fragment);
	__type(value, struct px_fragment_of);
} fragments SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, PX_ASKED);
	__type(key, struct px_ask);
	__type(value, struct px_asked);
} asked SEC(".maps");

KERB_EVENTS(unknown, PX_UNKNOWN);

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, PX_COUNTS);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

#endif
