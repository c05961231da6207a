// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)

//go:build ignore

/* Counts packets and bytes by interface, direction and protocol. Each CPU has counters of its own, so that none is lost to
 * another. */
#include <kerb/module.h>

#define COUNTER_FLOWS 16384 /* 1,000 services with 8 protocols in 2 directions */

#define COUNTER_EGRESS	0
#define COUNTER_INGRESS 1

/* No padding. */
struct counter_key {
	__u32 ifindex;
	__u8 direction;
	__u8 family; /* 4, 6; 0: not IP, or an IP header that did not parse */
	__u8 proto;  /* IANA number; 0 with family 0 */
	__u8 zero;
};

struct counter_value {
	__u64 packets, bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, COUNTER_FLOWS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct counter_key);
	__type(value, struct counter_value);
} counts SEC(".maps");

/* What found no room in counts, by direction. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct counter_value);
} overflow SEC(".maps");

static __always_inline void add(struct counter_value *v, const struct kerb_pkt *pkt)
{
	v->packets++;
	v->bytes += pkt->len;
}

/* The first packet of a key. Another CPU may be creating the same entry: then its entry is ours too. */
static __noinline int count_first(struct counter_key *key, __u32 len)
{
	struct counter_value zero = {}, *v;
	__u32 direction = key->direction;

	bpf_map_update_elem(&counts, key, &zero, BPF_NOEXIST);
	v = bpf_map_lookup_elem(&counts, key);
	if (!v)
		v = bpf_map_lookup_elem(&overflow, &direction);
	if (v) {
		v->packets++;
		v->bytes += len;
	}
	return KERB_NEXT;
}

static __always_inline int count(const struct kerb_pkt *pkt, __u8 direction)
{
	struct counter_key key = {.ifindex = pkt->ifindex, .direction = direction, .family = pkt->family, .proto = pkt->proto};
	struct counter_value *v = bpf_map_lookup_elem(&counts, &key);

	if (!v)
		return count_first(&key, pkt->len);
	add(v, pkt);
	return KERB_NEXT;
}

KERB_EGRESS(pkt)
{
	return count(pkt, COUNTER_EGRESS);
}

KERB_INGRESS(pkt)
{
	return count(pkt, COUNTER_INGRESS);
}

KERB_LICENSE("Dual BSD/GPL");
