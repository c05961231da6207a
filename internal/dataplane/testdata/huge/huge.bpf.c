// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Costs the verifier several hundred thousand instructions: two of them do not fit one program. */
#include <kerb/module.h>

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} sum SEC(".maps");

static __always_inline int burn(struct kerb_pkt *pkt)
{
	__u32 zero = 0;
	__u64 *s = bpf_map_lookup_elem(&sum, &zero);
	__u64 x = pkt->len;

	if (!s)
		return KERB_NEXT;
	for (int i = 0; i < 100000; i++) {
		x = x * 31 + i;
		asm volatile("" : "+r"(x));
	}
	*s += x | 1;
	return KERB_NEXT;
}

KERB_EGRESS(pkt)
{
	return burn(pkt);
}

KERB_INGRESS(pkt)
{
	return burn(pkt);
}

KERB_LICENSE("Dual BSD/GPL");
