// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Drops packets of one length. The same length lies in a value and in a map: a packet that finds two
 * different ones is dropped for a reason of its own. */
#include <kerb/module.h>

struct tunable_values {
	__u64 length;
	__u8 odd;
};

KERB_TUNABLES(struct tunable_values);

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} lengths SEC(".maps");

KERB_EGRESS(pkt)
{
	__u32 half = kerb_tunables_half();
	const struct tunable_values *v = kerb_tunables(half);
	__u64 *length = bpf_map_lookup_elem(&lengths, &half);

	if (!v || !length || *length != v->length || v->odd != (v->length & 1))
		return kerb_drop(pkt, KERB_DROP_MALFORMED);
	return pkt->len == v->length ? kerb_drop(pkt, KERB_DROP_POLICY) : KERB_NEXT;
}

KERB_LICENSE("Dual BSD/GPL");
