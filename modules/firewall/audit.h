/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Audit mode: packets that would be dropped are counted and pass. Hit counters are the same as
 * without it. A denied connection is tracked as well, with the inverted generation of the rules:
 * only its first packet counts, and subsequent ones, which would not have been sent, are recognized
 * by the entry. */
#ifndef FW_AUDIT_H
#define FW_AUDIT_H

#include "flow.h"

KERB_CONFIG(_Bool, audit, 0);

struct fw_hits {
	__u64 packets, bytes;
};

/* By reason: written only by the data plane, kept when the mode changes. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, KERB_DROP_REASONS);
	__type(key, __u32);
	__type(value, struct fw_hits);
} would_drop SEC(".maps");

static __always_inline void fw_count(void *map, __u32 index, const struct kerb_pkt *pkt)
{
	struct fw_hits *h = bpf_map_lookup_elem(map, &index);

	if (h) {
		h->packets++;
		h->bytes += pkt->len;
	}
}

#endif
