// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)

//go:build ignore

/* Counts packets and bytes by interface, direction and protocol. Each CPU has its own counters, so
 * that no increment is lost. They are in a small table where each key has one slot; a key whose
 * slot is taken by another key counts in a hash table, which costs more. A slot is never reassigned
 * here, so no counter ever moves. */
#include <kerb/module.h>

#define COUNTER_FLOWS	   16384 /* 1,000 services with 8 protocols in 2 directions */
#define COUNTER_PLACE_BITS 11
#define COUNTER_PLACES	   (1 << COUNTER_PLACE_BITS)

#define COUNTER_EGRESS	0
#define COUNTER_INGRESS 1

/* No padding. */
struct counter_key {
	union {
		struct {
			__u32 ifindex;
			__u8 direction;
			__u8 family; /* 4, 6; 0: not IP, or an IP header that did not parse */
			__u8 proto;  /* IANA number; 0 with family 0 */
			__u8 zero;
		};
		__u64 word; /* never 0: interfaces begin at 1 */
	};
};

struct counter_value {
	__u64 packets, bytes;
};

struct counter_place {
	__u64 key; /* struct counter_key of this CPU's first packet, 0: free */
	struct counter_value value;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTER_PLACES);
	__type(key, __u32);
	__type(value, struct counter_place);
} places SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, COUNTER_FLOWS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct counter_key);
	__type(value, struct counter_value);
} counts SEC(".maps");

/* Packets for which there was no room in counts, by direction. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct counter_value);
} overflow SEC(".maps");

static __always_inline int counter_add_packet(struct counter_value *v, __u32 len)
{
	v->packets++;
	v->bytes += len;
	return KERB_NEXT;
}

/* Another CPU may be creating the same entry: then that entry is used. */
static __noinline int counter_count_in_hash(__u64 word, __u32 len)
{
	struct counter_key key = {.word = word};
	struct counter_value none = {}, *v = bpf_map_lookup_elem(&counts, &key);
	__u32 direction = key.direction;

	if (v)
		return counter_add_packet(v, len);
	bpf_map_update_elem(&counts, &key, &none, BPF_NOEXIST);
	v = bpf_map_lookup_elem(&counts, &key);
	if (!v)
		v = bpf_map_lookup_elem(&overflow, &direction);
	return v ? counter_add_packet(v, len) : KERB_NEXT;
}

static __always_inline int counter_count_packet(const struct kerb_pkt *pkt, __u8 direction)
{
	struct counter_key key = { .ifindex = pkt->ifindex,
				   .direction = direction,
				   .family = pkt->family,
				   .proto = pkt->proto };
	__u32 at = key.word * 0x9e3779b97f4a7c15ULL >> (64 - COUNTER_PLACE_BITS);
	struct counter_place *p = bpf_map_lookup_elem(&places, &at);

	if (!p)
		return counter_count_in_hash(key.word, pkt->len);
	if (p->key != key.word) {
		if (p->key)
			return counter_count_in_hash(key.word, pkt->len);
		p->key = key.word;
	}
	return counter_add_packet(&p->value, pkt->len);
}

KERB_EGRESS(pkt)
{
	return counter_count_packet(pkt, COUNTER_EGRESS);
}

KERB_INGRESS(pkt)
{
	return counter_count_packet(pkt, COUNTER_INGRESS);
}

KERB_LICENSE("Dual BSD/GPL");
