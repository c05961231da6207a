/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Replies that reject a packet: ICMP errors and TCP resets, into which the packet is turned.
 * Include after <kerb/module.h>, and return what the functions return: KERB_REPLY, or KERB_DROP
 * where no answer is due.
 *
 *	return kerb_icmp_unreachable(pkt, KERB_UNREACHABLE_PORT);
 *	return kerb_icmp_too_big(pkt, mtu);
 *	return kerb_tcp_reset(pkt);
 *
 * They are not sent to ICMP errors, later fragments, broadcast and multicast, senders that are not
 * a single host (RFC 1122, 3.2.2; RFC 4443, 2.4), and packets with IPv4 options or IPv6 extension
 * headers; no reset is sent to resets and fragments; and there is a rate limit. The source address
 * is the destination of the packet. The packet context is not valid for the answer. */
#ifndef KERB_ANSWER_H
#define KERB_ANSWER_H

#include <kerb/l4.h>
#include <kerb/rewrite.h>

/* Codes (IANA). */
#define KERB_ICMP_FRAG_NEEDED 4
#define KERB_ICMP_PROHIBITED  13
#define KERB_ICMP6_PROHIBITED 1

enum kerb_unreachable {
	KERB_UNREACHABLE_NET = 0,
	KERB_UNREACHABLE_HOST = 1,
	KERB_UNREACHABLE_PORT = 2,
	KERB_UNREACHABLE_PROHIBITED = 3,
};

/* Bytes of the packet that an answer quotes: RFC 1812, 4.3.2.3 and RFC 4443, 2.4 (c). */
#define KERB_QUOTE4 548
#define KERB_QUOTE6 1232

/* Answers per CPU: as many as Linux sends itself (net.ipv4.icmp_msgs_per_sec, icmp_msgs_burst). */
#define KERB_ANSWER_NS	  1000000ULL
#define KERB_ANSWER_BURST 50

/* Theoretical arrival time of the next answer (GCRA, ITU-T I.371), ns. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} kerb_answers SEC(".maps");

static __always_inline int kerb_may_answer(void)
{
	__u64 now = bpf_ktime_get_ns(), *due;
	__u32 zero = 0;

	due = bpf_map_lookup_elem(&kerb_answers, &zero);
	if (!due || *due > now + KERB_ANSWER_BURST * KERB_ANSWER_NS)
		return 0;
	*due = (*due > now ? *due : now) + KERB_ANSWER_NS;
	return 1;
}

/* 0.0.0.0/8, 127.0.0.0/8, 224.0.0.0/3, which includes the limited broadcast. */
static __always_inline int kerb_is_host4(__be32 addr)
{
	__u32 first = bpf_ntohl(addr) >> 24;

	return first && first != 127 && first < 224;
}

static __always_inline int kerb_is_host6(const struct in6_addr *addr)
{
	const __be32 *w = addr->in6_u.u6_addr32;

	if (!(w[0] | w[1] | w[2]) && !(w[3] & bpf_htonl(0xfffffffe))) /* :: and ::1 */
		return 0;
	return (w[0] & bpf_htonl(0xff000000)) != bpf_htonl(0xff000000);
}

static __always_inline int kerb_is_icmp_error(const struct kerb_pkt *pkt)
{
	__u8 *type;

	if (pkt->proto != IPPROTO_ICMP && pkt->proto != IPPROTO_ICMPV6)
		return 0;
	type = kerb_at(pkt, pkt->l4, 1);
	if (!type)
		return 1;
	if (pkt->family == 6)
		return *type < KERB_ICMP6_ECHO || *type == KERB_ICMP6_REDIRECT;
	return *type != KERB_ICMP_ECHO && *type != KERB_ICMP_ECHO_REPLY &&
	       *type != KERB_ICMP_TIMESTAMP && *type != KERB_ICMP_TIMESTAMP_REPLY;
}

/* Returns whether the packet may be answered. */
static __always_inline int kerb_answerable(const struct kerb_pkt *pkt)
{
	struct ethhdr *eth = kerb_at(pkt, 0, sizeof(*eth));
	struct iphdr *ip4 = kerb_ip4(pkt);
	struct ipv6hdr *ip6 = kerb_ip6(pkt);

	if (!eth || eth->h_dest[0] & 1 ||
	    pkt->flags & (KERB_F_FRAG_LATER | KERB_F_OPTIONS | KERB_F_EXT) ||
	    kerb_is_icmp_error(pkt))
		return 0;
	if (ip4)
		return kerb_is_host4(ip4->saddr) && kerb_is_host4(ip4->daddr);
	return ip6 && kerb_is_host6(&ip6->saddr) && kerb_is_host6(&ip6->daddr);
}

/* Truncates the frame, and turns off its segmentation. */
static __always_inline int kerb_cut(struct kerb_pkt *pkt, __u32 len)
{
	int rc;

#ifdef KERB_HOOK_XDP
	rc = bpf_xdp_adjust_tail(pkt->ctx, (int)len - (int)pkt->len);
#else
	rc = bpf_skb_change_tail(pkt->ctx, len, 0);
	if (!rc)
		rc = bpf_skb_pull_data(pkt->ctx, len);
#endif
	kerb_reload(pkt);
	if (!rc)
		pkt->len = len;
	return rc;
}

/* Sum over len bytes, a multiple of 4, from an offset beyond the reach of kerb_at(). The helper
 * takes up to 512 bytes, and a size that the verifier knows. Negative if they are not linear, as in
 * XDP frames in several buffers. */
static __attribute__((noinline, unused)) __s64 kerb_sum_quote(const struct kerb_pkt *pkt, __u32 off,
							      __u32 len)
{
	const __u32 sizes[] = {512, 512, 256, 128, 64, 32, 16, 8, 4};
	__u32 sum = 0;

#pragma unroll
	for (int i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		void *p = pkt->data + (off & 0xfff);

		if (len < sizes[i])
			continue;
		if (p + sizes[i] > pkt->data_end)
			return -EFAULT;
		sum = bpf_csum_diff(0, 0, p, sizes[i], sum);
		off += sizes[i];
		len -= sizes[i];
	}
	return sum;
}

/* An ICMP header with an additional word, such as an MTU. */
struct kerb_icmp_hdr {
	__u8 type, code;
	__u16 check;
	__be32 word;
};

struct kerb_answer4 {
	struct iphdr ip;
	struct kerb_icmp_hdr icmp;
};

struct kerb_answer6 {
	struct ipv6hdr ip;
	struct kerb_icmp_hdr icmp;
};

/* Correction for the sum of the quoted bytes: a transport checksum left to the device
 * (CHECKSUM_PARTIAL), which is in the quote, may still be computed on the answer's path. The bytes
 * that it covers then sum up to the complement of the field; where it is not computed, the answer's
 * checksum is not verified either. */
static __always_inline __s64 kerb_sum_when_complete(const struct kerb_pkt *pkt, __s64 sum,
						    __u32 start, __u32 len)
{
#ifndef KERB_HOOK_XDP
	__u32 off = start + (pkt->proto == IPPROTO_TCP ? 16 : 6);
	__s64 quoted;
	__u16 field;

	if (!(pkt->flags & KERB_F_L4) || (pkt->proto != IPPROTO_TCP && pkt->proto != IPPROTO_UDP) ||
	    !kerb_is_partial(pkt))
		return sum;
	if (kerb_load_bytes(pkt, off, &field, sizeof(field)))
		return sum;
	quoted = kerb_sum_quote(pkt, start, len);
	if (quoted < 0)
		return quoted;
	sum = kerb_diff32(kerb_fold(quoted), 0) + sum;
	return sum + (__u16)~field;
#else
	return sum;
#endif
}

static __always_inline int kerb_send_icmp4(struct kerb_pkt *pkt, __u8 type, __u8 code, __be32 word,
					   __u32 quote)
{
	struct iphdr *was = kerb_at(pkt, pkt->l3, sizeof(*was));
	__u32 l4 = pkt->l4 - pkt->l3, flags = pkt->flags;
	struct kerb_answer4 a = {};
	__s64 sum;

	if (!was)
		return -EFAULT;
	a.ip.version = 4;
	a.ip.ihl = 5;
	a.ip.tos = 0xc0; /* internetwork control: RFC 1812, 4.3.2.5 */
	a.ip.tot_len = bpf_htons(sizeof(a) + quote);
	a.ip.frag_off = bpf_htons(0x4000); /* do not fragment: the id has no meaning (RFC 6864) */
	a.ip.ttl = 64;
	a.ip.protocol = IPPROTO_ICMP;
	a.ip.saddr = was->daddr;
	a.ip.daddr = was->saddr;
	a.ip.check = ~kerb_fold(bpf_csum_diff(0, 0, (void *)&a.ip, sizeof(a.ip), 0));
	a.icmp.type = type;
	a.icmp.code = code;
	a.icmp.word = word;
	if (kerb_adjust_room(pkt, sizeof(a), 0))
		return -EFAULT;
	pkt->flags = flags;
	kerb_forget(pkt); /* on XDP the verifier knows the length of the link header here */
	sum = kerb_sum_quote(pkt, pkt->l3 + sizeof(a), quote);
	if (sum >= 0)
		sum = kerb_sum_when_complete(pkt, sum, pkt->l3 + sizeof(a) + l4, quote - l4);
	if (sum < 0)
		return sum;
	sum += bpf_csum_diff(0, 0, (void *)&a.icmp, sizeof(a.icmp), 0);
	a.icmp.check = ~kerb_fold(sum);
	return kerb_store_bytes(pkt, pkt->l3, &a, sizeof(a));
}

static __always_inline int kerb_send_icmp6(struct kerb_pkt *pkt, __u8 type, __u8 code, __be32 word,
					   __u32 quote)
{
	struct ipv6hdr *was = kerb_at(pkt, pkt->l3, sizeof(*was));
	__u32 l4 = pkt->l4 - pkt->l3, flags = pkt->flags;
	struct kerb_answer6 a = {};
	__s64 sum;

	if (!was)
		return -EFAULT;
	a.ip.version = 6;
	a.ip.payload_len = bpf_htons(sizeof(a.icmp) + quote);
	a.ip.nexthdr = IPPROTO_ICMPV6;
	a.ip.hop_limit = 64;
	a.ip.saddr = was->daddr;
	a.ip.daddr = was->saddr;
	a.icmp.type = type;
	a.icmp.code = code;
	a.icmp.word = word;
	if (kerb_adjust_room(pkt, sizeof(a), 0))
		return -EFAULT;
	pkt->flags = flags;
	kerb_forget(pkt); /* as above */
	sum = kerb_sum_quote(pkt, pkt->l3 + sizeof(a), quote);
	if (sum >= 0)
		sum = kerb_sum_when_complete(pkt, sum, pkt->l3 + sizeof(a) + l4, quote - l4);
	if (sum < 0)
		return sum;
	sum += bpf_csum_diff(0, 0, (void *)&a.ip.saddr, 32, 0);
	sum += bpf_csum_diff(0, 0, (void *)&a.icmp, sizeof(a.icmp), 0);
	sum += bpf_htons(IPPROTO_ICMPV6) + a.ip.payload_len;
	a.icmp.check = ~kerb_fold(sum);
	return kerb_store_bytes(pkt, pkt->l3, &a, sizeof(a));
}

/* Turns the packet into an ICMP error about it. Not inlined, because it is long. */
static __attribute__((noinline, unused)) int kerb_icmp_error(struct kerb_pkt *pkt, __u32 type_code,
							     __u32 word)
{
	__u32 quote, most = pkt->family == 4 ? KERB_QUOTE4 : KERB_QUOTE6;
	int rc;

	if (!kerb_answerable(pkt))
		return kerb_drop(pkt, KERB_DROP_NO_ROUTE);
	if (!kerb_may_answer())
		return kerb_drop(pkt, KERB_DROP_RATE);
	kerb_forget(pkt);
	/* whole words: up to three bytes fewer than available */
	quote = ((__u32)(pkt->l4 - pkt->l3) + pkt->l4_len) & ~3U;
	if (quote > most)
		quote = most;
	if (kerb_swap_macs(pkt) || kerb_cut(pkt, pkt->l3 + quote))
		return kerb_drop(pkt, KERB_DROP_NO_MEMORY);
	if (pkt->family == 4)
		rc = kerb_send_icmp4(pkt, type_code >> 8, type_code, bpf_htonl(word), quote);
	else
		rc = kerb_send_icmp6(pkt, type_code >> 8, type_code, bpf_htonl(word), quote);
	return rc ? kerb_drop(pkt, KERB_DROP_NO_MEMORY) : KERB_REPLY;
}

/* Destination unreachable. The codes: net, host, port, prohibited; no route, address, port,
 * prohibited. */
static __always_inline int kerb_icmp_unreachable(struct kerb_pkt *pkt, enum kerb_unreachable why)
{
	__u32 type = pkt->family == 4 ? KERB_ICMP_UNREACHABLE : KERB_ICMP6_UNREACHABLE;
	__u32 codes = pkt->family == 4 ? 0x0d030100 : 0x01040300;

	return kerb_icmp_error(pkt, type << 8 | (codes >> 8 * why & 0xff), 0);
}

/* Sends "packet too big": the packet, without link header, must not exceed mtu: RFC 1191, RFC
 * 8201. */
static __always_inline int kerb_icmp_too_big(struct kerb_pkt *pkt, __u32 mtu)
{
	__u32 type_code = pkt->family == 4 ? KERB_ICMP_UNREACHABLE << 8 | KERB_ICMP_FRAG_NEEDED
					   : KERB_ICMP6_TOO_BIG << 8;

	return kerb_icmp_error(pkt, type_code, mtu);
}

/* Turns the header at tcp into a reset of its segment (RFC 9293, 3.10.7.1). payload: bytes after
 * it. */
static __always_inline void kerb_make_reset(struct tcphdr *tcp, __u32 payload)
{
	__u8 *flags = (__u8 *)tcp + 13, was = *flags;
	__be32 seq = tcp->seq, ack = tcp->ack_seq;
	__be16 source = tcp->source;

	tcp->source = tcp->dest;
	tcp->dest = source;
	tcp->seq = was & KERB_TCP_ACK ? ack : 0;
	tcp->ack_seq = was & KERB_TCP_ACK
			       ? 0
			       : bpf_htonl(bpf_ntohl(seq) + payload + !!(was & KERB_TCP_SYN) +
					   !!(was & KERB_TCP_FIN));
	*(__u8 *)((void *)tcp + 12) = 5 << 4;
	*flags = was & KERB_TCP_ACK ? KERB_TCP_RST : KERB_TCP_RST | KERB_TCP_ACK;
	tcp->window = 0;
	tcp->check = 0;
	tcp->urg_ptr = 0;
}

/* Sum over the pseudo-header. */
static __always_inline __u64 kerb_pseudo_sum(const struct kerb_pkt *pkt, __u32 len)
{
	struct iphdr *ip4 = kerb_ip4(pkt);
	struct ipv6hdr *ip6 = kerb_ip6(pkt);
	__u64 sum = bpf_htons(len) + bpf_htons(pkt->proto);

	if (ip4)
		return sum + ip4->saddr + ip4->daddr;
	if (!ip6)
		return sum;
#pragma unroll
	for (int i = 0; i < 4; i++)
		sum += (__u64)ip6->saddr.in6_u.u6_addr32[i] + ip6->daddr.in6_u.u6_addr32[i];
	return sum;
}

/* Rewrites the IP header for a TCP segment without payload in the other direction. */
static __always_inline int kerb_turn_ip(struct kerb_pkt *pkt)
{
	struct iphdr *ip4 = kerb_ip4(pkt);
	struct ipv6hdr *ip6 = kerb_ip6(pkt);

	if (kerb_swap_ips(pkt))
		return -EINVAL;
	if (ip4) {
		__be16 len = bpf_htons(sizeof(*ip4) + sizeof(struct tcphdr)),
		       frag = bpf_htons(0x4000);

		ip4->check = kerb_csum(ip4->check, kerb_diff16(ip4->tot_len, len) +
							   kerb_diff16(ip4->frag_off, frag));
		ip4->tot_len = len;
		ip4->frag_off = frag;
	} else if (ip6) {
		ip6->payload_len = bpf_htons(sizeof(struct tcphdr));
	}
	return kerb_set_ttl(pkt, 64);
}

/* Turns a TCP packet into a reset of its connection. */
static __attribute__((noinline, unused)) int kerb_tcp_reset(struct kerb_pkt *pkt)
{
	struct tcphdr *tcp = kerb_tcp(pkt), reset;
	__u64 sum;

	if (!tcp || !kerb_answerable(pkt) || pkt->flags & KERB_F_FRAG ||
	    ((__u8 *)tcp)[13] & KERB_TCP_RST)
		return kerb_drop(pkt, KERB_DROP_STATE);
	if (!kerb_may_answer())
		return kerb_drop(pkt, KERB_DROP_RATE);
	kerb_forget(pkt);
	tcp = kerb_at(pkt, pkt->l4, sizeof(*tcp));
	if (!tcp)
		return kerb_drop(pkt, KERB_DROP_MALFORMED);
	reset = *tcp;
	kerb_make_reset(&reset, pkt->l4_len - tcp->doff * 4);
	/* otherwise the compiler derives from tcp that there is a link header, which the verifier
	 * does not */
	kerb_reload(pkt);
	if (kerb_swap_macs(pkt) || kerb_cut(pkt, (__u32)pkt->l4 + sizeof(reset)) ||
	    kerb_turn_ip(pkt))
		return kerb_drop(pkt, KERB_DROP_NO_MEMORY);
	sum = kerb_pseudo_sum(pkt, sizeof(reset));
#ifndef KERB_HOOK_XDP
	if (kerb_is_partial(pkt)) {
		reset.check = kerb_fold(sum);
		return kerb_store_bytes(pkt, pkt->l4, &reset, sizeof(reset))
			       ? kerb_drop(pkt, KERB_DROP_NO_MEMORY)
			       : KERB_REPLY;
	}
#endif
	sum += bpf_csum_diff(0, 0, (void *)&reset, sizeof(reset), 0);
	reset.check = ~kerb_fold(sum);
	return kerb_store_bytes(pkt, pkt->l4, &reset, sizeof(reset))
		       ? kerb_drop(pkt, KERB_DROP_NO_MEMORY)
		       : KERB_REPLY;
}

#endif
