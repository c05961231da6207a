/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Parsing of headers, and matching against the rule of a class. Offsets are from skb->data, the
 * network header. */
#pragma once

#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/skbuff.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <net/ip.h>
#include <net/ipv6.h>

#include "kerb_intercept.h"

struct headers {
	u8 family, protocol;
	bool fragment, later_fragment; /* later: not the first, so without transport header */
	bool whole_l4;
	int l4, payload;
	u16 port; /* destination, host byte order */
};

static bool icpt_parse_ip4(const struct sk_buff *skb, struct headers *h)
{
	struct iphdr buffer;
	const struct iphdr *ip = skb_header_pointer(skb, 0, sizeof(buffer), &buffer);

	if (!ip || ip->version != 4 || ip->ihl < 5 || ntohs(ip->tot_len) > skb->len)
		return false;
	h->family = 4;
	h->protocol = ip->protocol;
	h->l4 = ip->ihl * 4;
	h->fragment = ip_is_fragment(ip);
	h->later_fragment = ip->frag_off & htons(IP_OFFSET);
	return true;
}

static bool icpt_parse_ip6(const struct sk_buff *skb, struct headers *h)
{
	struct ipv6hdr buffer;
	const struct ipv6hdr *ip = skb_header_pointer(skb, 0, sizeof(buffer), &buffer);
	__be16 fragment = 0;

	if (!ip || ip->version != 6)
		return false;
	h->family = 6;
	h->protocol = ip->nexthdr;
	h->l4 = ipv6_skip_exthdr(skb, sizeof(*ip), &h->protocol, &fragment);
	h->fragment = fragment;
	h->later_fragment = fragment & htons(IP6_OFFSET);
	return h->l4 >= 0;
}

static bool icpt_parse_l4(const struct sk_buff *skb, struct headers *h)
{
	struct tcphdr buffer; /* ports of TCP and UDP have the same offsets */
	const struct tcphdr *l4;

	h->payload = h->l4;
	if (h->later_fragment || (h->protocol != IPPROTO_UDP && h->protocol != IPPROTO_TCP))
		return true;
	l4 = skb_header_pointer(skb, h->l4,
				h->protocol == IPPROTO_TCP ? sizeof(*l4) : sizeof(struct udphdr),
				&buffer);
	if (!l4)
		return false;
	h->whole_l4 = true;
	h->port = ntohs(l4->dest);
	h->payload += h->protocol == IPPROTO_TCP ? l4->doff * 4 : sizeof(struct udphdr);
	return true;
}

static bool icpt_parse(const struct sk_buff *skb, struct headers *h)
{
	switch (skb->protocol) {
	case htons(ETH_P_IP):
		return icpt_parse_ip4(skb, h) && icpt_parse_l4(skb, h);
	case htons(ETH_P_IPV6):
		return icpt_parse_ip6(skb, h) && icpt_parse_l4(skb, h);
	}
	return false;
}

static bool icpt_pattern_matches(const struct icpt_rule *rule, const struct sk_buff *skb, int at)
{
	u8 buffer[ICPT_PATTERN], differs = 0;
	const u8 *bytes;

	if (!rule->pattern_len)
		return true;
	bytes = skb_header_pointer(skb, at + rule->pattern_at, rule->pattern_len, buffer);
	for (int i = 0; bytes && i < rule->pattern_len; i++)
		differs |= (bytes[i] ^ rule->pattern[i]) & rule->mask[i];
	return bytes && !differs;
}

static bool icpt_rule_matches(const struct icpt_rule *rule, const struct sk_buff *skb,
			      const struct headers *h)
{
	if ((rule->family && rule->family != h->family) ||
	    (rule->protocol && rule->protocol != h->protocol))
		return false;
	if (!rule->last_port && !rule->pattern_len)
		return true;
	if (h->later_fragment ||
	    (rule->last_port && (h->port < rule->first_port || h->port > rule->last_port)))
		return false;
	return icpt_pattern_matches(rule, skb, h->payload);
}
