/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The parts of a packet that the firewall evaluates: the words that rules compare, and the
 * connection's key. They are in a per-CPU map and not on the stack: before Linux 5.12 programs may
 * not index the stack by a variable. In addition the verifier does not know values in a map, so
 * that it follows the subsequent code once and not once per kind of packet. */
#ifndef FW_FLOW_H
#define FW_FLOW_H

#include <kerb/l4.h>
#include <kerb/set.h>

#include "conn.h"

#define FW_EGRESS  0
#define FW_INGRESS 1
#define FW_FORKS   32 /* mirrored in compile.go */
#define FW_CLASSES 8

#define FW_SCALE_MAX	    14 /* RFC 7323 */
#define FW_SCALE_NONE	    0xff
#define FW_SCALE_UNREADABLE 0xfe

/* Dimensions of the rules: words in host byte order. IPv4 has its addresses in words 0 and 1, IPv6
 * in 0-3 and 4-7. For ICMP the type stands in place of the source port and the code in place of the
 * destination port. */
#define FW_DIM_PROTO 8
#define FW_DIM_SPORT 9
#define FW_DIM_DPORT 10

/* How a packet relates to connections. */
enum fw_kind {
	/* by addresses, protocol and ports (0 where the protocol has none known to us) */
	FW_PLAIN = 0,
	FW_ECHO_LOCAL = 1,  /* ICMP echo requested by the service, by identifier */
	FW_ECHO_REMOTE = 2, /* ICMP echo requested by the peer */
	FW_ERROR = 3,	    /* ICMP error: belongs to the connection quoted in it */
	FW_LOOSE = 4,	    /* any other ICMP: belongs to no connection */
};

/* Whether a packet may begin a connection. */
enum fw_begins {
	FW_BEGINS_NOT = 0,
	FW_BEGINS = 1,
	FW_BEGINS_MIDSTREAM = 2, /* a TCP segment of a connection that must have begun earlier */
};

/* Keys of connections. Addresses and ports in network byte order; no padding. */
struct fw_key4 {
	__u32 ifindex;
	__be32 local, remote;
	__be16 local_port, remote_port;
	__u8 proto, kind;
	__u16 zero;
};

struct fw_key6 {
	__u32 ifindex;
	__be32 local[4], remote[4];
	__be16 local_port, remote_port;
	__u8 proto, kind;
	__u16 zero;
};

/* A tree still to be searched. */
struct fw_fork {
	__u32 chunk, node, first;
};

/* Values that a change of rules changes. The rest of the config is constant (KERB_CONFIG). */
struct fw_values {
	__u32 generation; /* identity of the rule set: entries of another one are checked again */
	/* Where the search starts: chunk * FW_CHUNK + node. Node 0 is an END. */
	__u32 root_egress4, root_egress6, root_ingress4, root_ingress6;
	_Bool allow_egress, allow_ingress; /* default policies */
};

KERB_TUNABLES(struct fw_values);

struct fw_flow {
	__u64 zero; /* always: see fw_forget_packet */
	__u64 now;  /* monotonic clock, with state */
	union {
		__u32 word[16];
		__u64 pair[8];
	};
	union {
		struct fw_key4 key4;
		struct fw_key6 key6;
	};
	__u32 dir;    /* FW_EGRESS, FW_INGRESS */
	__u32 len;    /* of the frame */
	__u8 family;  /* 4 or 6 */
	__u8 proto;   /* of the packet, or of the one it quotes */
	__u8 kind;    /* enum fw_kind; of the packet that key is about */
	__u8 tcp;     /* TCP flags */
	__u8 begins;  /* enum fw_begins */
	__u8 quoting; /* an ICMP error: key, and seq of TCP, are of the packet it quotes */
	__u8 stale;   /* enum fw_track while the rules are evaluated */
	__u8 fragment; /* the first of several */
	__u8 scale;    /* TCP window scale of a SYN; FW_SCALE_NONE, FW_SCALE_UNREADABLE */
	__u8 cursor;   /* where in options the parser is */
	__u8 options_len;
	__u8 unused;
	__u32 half;	  /* of the values and of the rules: see KERB_TUNABLES */
	__u32 generation; /* of the rules */
	__u32 hidden; /* see kerb_through */
	struct fw_conn next; /* the new contents of an entry */
	struct fw_usage usage; /* the initial values of an interface */
	/* TCP, host byte order; end is after the last byte, win unscaled */
	__u32 seq, ack, end, win;
	__u8 options[40];	  /* of a SYN */
	/* The search's: see classify.h. */
	__u32 asked; /* direction of the rules */
	__u32 root, chunk, rule, best, forks;
	struct fw_fork fork[FW_FORKS];
	__u32 class[FW_CLASSES], numbers; /* addresses */
	__u64 bits[8];
	/* of a lookup in a set */
	__u64 set_id;
	struct kerb_set_prefix set_key;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fw_flow);
} scratch SEC(".maps");

struct fw_icmp {
	__u8 type, code;
	__be16 csum, id, seq;
};

static __always_inline struct fw_flow *fw_flow(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&scratch, &zero);
}

/* The values for a packet, which stay the same until its end. */
static __always_inline const struct fw_values *fw_values(const struct fw_flow *f)
{
	return kerb_tunables(f->half);
}

static __always_inline void fw_choose_values(struct fw_flow *f)
{
	__u32 half = kerb_tunables_half();
	const struct fw_values *v = kerb_tunables(half);

	f->half = half;
	f->generation = v ? v->generation : 0;
}

static __always_inline __u8 fw_icmp_kind(int v4, __u8 type, __u32 dir)
{
	if (type == (v4 ? KERB_ICMP_ECHO : KERB_ICMP6_ECHO))
		return dir == FW_EGRESS ? FW_ECHO_LOCAL : FW_ECHO_REMOTE;
	if (type == (v4 ? KERB_ICMP_ECHO_REPLY : KERB_ICMP6_ECHO_REPLY))
		return dir == FW_EGRESS ? FW_ECHO_REMOTE : FW_ECHO_LOCAL;
	if (v4 ? type == KERB_ICMP_UNREACHABLE || type == KERB_ICMP_TIME ||
			    type == KERB_ICMP_PARAMETER
	       : type >= KERB_ICMP6_UNREACHABLE && type <= KERB_ICMP6_PARAMETER)
		return FW_ERROR;
	return FW_LOOSE;
}

/* Addresses of the packet: words of the rules, and the key. */
static __always_inline int fw_read_addresses(const struct kerb_pkt *pkt, struct fw_flow *f)
{
	int out = f->dir == FW_EGRESS;

	if (pkt->family == 4) {
		struct iphdr *ip = kerb_at(pkt, pkt->l3, sizeof(*ip));

		if (!ip)
			return -1;
		f->word[0] = bpf_ntohl(ip->saddr);
		f->word[1] = bpf_ntohl(ip->daddr);
		f->key4.ifindex = pkt->ifindex;
		f->key4.local = out ? ip->saddr : ip->daddr;
		f->key4.remote = out ? ip->daddr : ip->saddr;
	} else {
		struct ipv6hdr *ip = kerb_at(pkt, pkt->l3, sizeof(*ip));

		if (!ip)
			return -1;
#pragma unroll
		for (int i = 0; i < 4; i++) {
			__be32 src = ip->saddr.s6_addr32[i], dst = ip->daddr.s6_addr32[i];

			f->word[i] = bpf_ntohl(src);
			f->word[i + 4] = bpf_ntohl(dst);
			f->key6.local[i] = out ? src : dst;
			f->key6.remote[i] = out ? dst : src;
		}
		f->key6.ifindex = pkt->ifindex;
	}
	return 0;
}

/* Writes the rest of the key. */
static __always_inline void fw_set_key(struct fw_flow *f, int v4, __be16 local_port,
				       __be16 remote_port)
{
	if (v4) {
		f->key4.local_port = local_port;
		f->key4.remote_port = remote_port;
		f->key4.proto = f->proto;
		f->key4.kind = f->kind;
		f->key4.zero = 0; /* shares memory with key6 */
	} else {
		f->key6.local_port = local_port;
		f->key6.remote_port = remote_port;
		f->key6.proto = f->proto;
		f->key6.kind = f->kind;
	}
}

static __always_inline void fw_read_icmp(const struct kerb_pkt *pkt, struct fw_flow *f)
{
	struct fw_icmp *icmp = kerb_at(pkt, pkt->l4, sizeof(*icmp));
	int v4 = pkt->family == 4;

	if (!icmp)
		return;
	f->word[FW_DIM_SPORT] = icmp->type;
	f->word[FW_DIM_DPORT] = icmp->code;
	f->kind = fw_icmp_kind(v4, icmp->type, f->dir);
	f->begins = icmp->type == (v4 ? KERB_ICMP_ECHO : KERB_ICMP6_ECHO);
	fw_set_key(f, v4, icmp->id, 0);
}

/* Returns the window scale among the options of a SYN. The cursor is in memory, where the verifier
 * does not follow it: all rounds of the loop look the same to it. */
static __always_inline __u8 fw_find_scale(struct fw_flow *f)
{
	volatile __u8 *cursor = &f->cursor;

	*cursor = 0;
	for (int i = 0; i < 40; i++) {
		__u32 at = *cursor, kind, len;

		if (at >= f->options_len || at >= sizeof(f->options) - 2)
			return FW_SCALE_NONE;
		kind = f->options[at];
		if (!kind)
			return FW_SCALE_NONE;
		if (kind == 1) {
			*cursor = at + 1;
			continue;
		}
		len = f->options[at + 1];
		if (kind == 3 && len == 3)
			return f->options[at + 2] > FW_SCALE_MAX ? FW_SCALE_MAX
								 : f->options[at + 2];
		if (len < 2)
			return FW_SCALE_NONE;
		*cursor = at + len > 0xff ? 0xff : at + len;
	}
	return FW_SCALE_NONE;
}

static __noinline __u8 fw_read_scale(const struct kerb_pkt *pkt, struct fw_flow *f)
{
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < sizeof(f->options) / 4; i++) {
		__u32 *word;

		if (i * 4 >= f->options_len)
			break;
		word = kerb_at(pkt, pkt->l4 + sizeof(struct tcphdr) + i * 4, 4);
		if (!word)
			return FW_SCALE_UNREADABLE;
		__builtin_memcpy(&f->options[i * 4], word, 4);
	}
	return fw_find_scale(f);
}

static __always_inline int fw_read_tcp(const struct kerb_pkt *pkt, struct fw_flow *f)
{
	struct tcphdr *tcp = kerb_at(pkt, pkt->l4, sizeof(*tcp));
	__u32 hlen;

	if (!tcp)
		return -1;
	hlen = tcp->doff * 4;
	f->tcp = ((__u8 *)tcp)[13];
	f->seq = bpf_ntohl(tcp->seq);
	f->ack = bpf_ntohl(tcp->ack_seq);
	f->win = bpf_ntohs(tcp->window);
	f->end =
		f->seq + pkt->l4_len - hlen + !!(f->tcp & KERB_TCP_SYN) + !!(f->tcp & KERB_TCP_FIN);
	f->fragment = !!(pkt->flags & KERB_F_FRAG_FIRST);
	f->begins = f->tcp & (KERB_TCP_RST | KERB_TCP_SYN) ? FW_BEGINS_NOT : FW_BEGINS_MIDSTREAM;
	if ((f->tcp & (KERB_TCP_SYN | KERB_TCP_ACK | KERB_TCP_RST | KERB_TCP_FIN)) == KERB_TCP_SYN)
		f->begins = FW_BEGINS;
	if (f->tcp & KERB_TCP_SYN) {
		f->options_len = hlen - sizeof(*tcp);
		f->scale = fw_read_scale(pkt, f);
	}
	return 0;
}

/* Flag combinations that TCP implementations send (RFC 9293); PSH, ECE and CWR may be set with any
 * of them. */
static __always_inline int fw_tcp_flags_valid(__u8 flags)
{
	const __u32 valid = 1 << 2 | 1 << 18 |	      /* SYN, with URG */
			    1 << 10 |		      /* SYN ACK */
			    1 << 4 | 1 << 12 |	      /* RST, with ACK */
			    1 << 8 | 1 << 24 |	      /* ACK, with URG */
			    1 << 9 | 1 << 25;	      /* FIN ACK, with URG */

	return valid >> ((flags & 7) | (flags & (KERB_TCP_ACK | KERB_TCP_URG)) >> 1) & 1;
}

/* Reads a parsed packet that is not a later fragment. */
static __always_inline int fw_read(const struct kerb_pkt *pkt, struct fw_flow *f, __u32 dir)
{
	__be16 sport = 0, dport = 0;

	f->dir = dir;
	f->len = pkt->len;
	f->family = pkt->family;
	f->proto = pkt->proto;
	f->kind = FW_PLAIN;
	f->tcp = 0;
	f->begins = 1;
	f->quoting = 0;
	f->word[FW_DIM_PROTO] = pkt->proto;
	if (fw_read_addresses(pkt, f))
		return -1;
	if (pkt->flags & KERB_F_L4) {
		if (pkt->proto == IPPROTO_TCP || pkt->proto == IPPROTO_UDP) {
			__be16 *port = kerb_at(pkt, pkt->l4, sizeof(struct udphdr));

			if (!port)
				return -1;
			sport = port[0];
			dport = port[1];
			if (pkt->proto == IPPROTO_TCP && fw_read_tcp(pkt, f))
				return -1;
		} else {
			fw_read_icmp(pkt, f);
			return 0;
		}
	}
	f->word[FW_DIM_SPORT] = bpf_ntohs(sport);
	f->word[FW_DIM_DPORT] = bpf_ntohs(dport);
	if (dir == FW_EGRESS)
		fw_set_key(f, pkt->family == 4, sport, dport);
	else
		fw_set_key(f, pkt->family == 4, dport, sport);
	return 0;
}

/* Reverses the words, to those of the packet that this one answers. */
static __always_inline void fw_reverse(struct fw_flow *f)
{
	__u32 port = f->word[FW_DIM_SPORT];

	f->asked = !f->dir;
	if (f->kind != FW_PLAIN) {
		f->word[FW_DIM_SPORT] = f->family == 4 ? KERB_ICMP_ECHO : KERB_ICMP6_ECHO;
	} else {
		f->word[FW_DIM_SPORT] = f->word[FW_DIM_DPORT];
		f->word[FW_DIM_DPORT] = port;
	}
	if (f->family == 4) {
		f->pair[0] = f->pair[0] << 32 | f->pair[0] >> 32;
	} else {
		__u64 first = f->pair[0], second = f->pair[1];

		f->pair[0] = f->pair[2];
		f->pair[1] = f->pair[3];
		f->pair[2] = first;
		f->pair[3] = second;
	}
}

#endif
