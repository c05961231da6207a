/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Later fragments have no ports, so the first one decides for its datagram: while it is remembered,
 * the others pass. Fragments that arrive before it are dropped, and so are those that would overlap
 * its transport header (RFC 1858). */
#ifndef FW_FRAGMENT_H
#define FW_FRAGMENT_H

#define FW_FRAGMENTS	4096
/* how long receivers wait for the rest (Linux: ipfrag_time) */
#define FW_FRAGMENT_NS	30000000000ULL
/* bytes; nothing before belongs to a later fragment of a sane datagram */
#define FW_FRAGMENT_MIN 24

enum fw_fragment_policy {
	FW_FRAGMENTS_DENY = 0,
	FW_FRAGMENTS_ALLOW = 1,
	FW_FRAGMENTS_TRACK = 2,
};

KERB_CONFIG(__u32, fragments, FW_FRAGMENTS_TRACK);

struct fw_fragment_key {
	__u32 ifindex;
	__be32 src[4], dst[4];
	__be32 id;
	__u8 dir, proto; /* IPv6 reassembles without the protocol (RFC 8200, 4.5) */
	__u16 family;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FW_FRAGMENTS);
	__type(key, struct fw_fragment_key);
	__type(value, __u64);
} fragment_table SEC(".maps");

/* Fills k; returns the fragment's offset in bytes, or a negative value when it cannot be read. */
static __always_inline int fw_fragment_key(const struct kerb_pkt *pkt, __u32 dir,
					   struct fw_fragment_key *k)
{
	__builtin_memset(k, 0, sizeof(*k));
	k->ifindex = pkt->ifindex;
	k->dir = dir;
	k->family = pkt->family;
	if (pkt->family == 4) {
		struct iphdr *ip = kerb_at(pkt, pkt->l3, sizeof(*ip));

		if (!ip)
			return -1;
		k->src[0] = ip->saddr;
		k->dst[0] = ip->daddr;
		k->id = ip->id;
		k->proto = ip->protocol;
		return (bpf_ntohs(ip->frag_off) & KERB_IP_FRAG_LATER) * 8;
	} else {
		struct ipv6hdr *ip = kerb_at(pkt, pkt->l3, sizeof(*ip));
		struct kerb_ext_hdr *ext;

		if (!ip)
			return -1;
		__builtin_memcpy(k->src, &ip->saddr, 16);
		__builtin_memcpy(k->dst, &ip->daddr, 16);
		ext = kerb_fragment(pkt);
		if (!ext)
			return -1;
		k->id = ext->id;
		return bpf_ntohs(ext->frag_off) & 0xfff8;
	}
}

/* Returns whether a later fragment belongs to a datagram whose first fragment was allowed. */
static __always_inline int fw_fragment_known(const struct kerb_pkt *pkt, __u32 dir, __u64 now)
{
	struct fw_fragment_key k;
	int off = fw_fragment_key(pkt, dir, &k);
	__u64 *seen;

	if (off < FW_FRAGMENT_MIN)
		return 0;
	seen = bpf_map_lookup_elem(&fragment_table, &k);
	return seen && (__s64)(now - *seen) <= (__s64)FW_FRAGMENT_NS;
}

static __always_inline void fw_fragment_remember(const struct kerb_pkt *pkt, __u32 dir, __u64 now)
{
	struct fw_fragment_key k;

	if (fw_fragment_key(pkt, dir, &k) >= 0)
		bpf_map_update_elem(&fragment_table, &k, &now, BPF_ANY);
}

#endif
