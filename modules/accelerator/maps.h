/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#ifndef ACCEL_MAPS_H
#define ACCEL_MAPS_H

#include "kernel.h"
#include "layout.h"

#define ACCEL_MAP(name, kind, entries, key_type, value_type, flags) \
	struct { \
		__uint(type, kind); \
		__uint(max_entries, entries); \
		__uint(map_flags, flags); \
		__type(key, key_type); \
		__type(value, value_type); \
	} name SEC(".maps")

ACCEL_MAP(config, BPF_MAP_TYPE_ARRAY, 1, __u32, struct accel_config, 0);
ACCEL_MAP(members, BPF_MAP_TYPE_HASH, 4096, __u64, struct accel_service, BPF_F_NO_PREALLOC);
ACCEL_MAP(ports, BPF_MAP_TYPE_ARRAY, 1024, __u32, __u64, 0);
ACCEL_MAP(visibles, BPF_MAP_TYPE_ARRAY, ACCEL_VISIBLES, __u32, struct accel_visible, 0);
ACCEL_MAP(executables, BPF_MAP_TYPE_HASH, 4096, struct accel_file, struct accel_executable,
	  BPF_F_NO_PREALLOC);
ACCEL_MAP(listeners, BPF_MAP_TYPE_LRU_HASH, 4096, struct accel_port, struct accel_listener, 0);
ACCEL_MAP(destinations, BPF_MAP_TYPE_LRU_HASH, 4096, struct accel_address, struct accel_destination,
	  0);
ACCEL_MAP(offers, BPF_MAP_TYPE_HASH, ACCEL_CONNECTIONS, struct accel_pair, struct accel_offer,
	  BPF_F_NO_PREALLOC);
ACCEL_MAP(ends, BPF_MAP_TYPE_HASH, 2 * ACCEL_CONNECTIONS, __u64, struct accel_end,
	  BPF_F_NO_PREALLOC);
ACCEL_MAP(sockets, BPF_MAP_TYPE_SOCKHASH, 2 * ACCEL_CONNECTIONS, __u64, __u64, 0);
ACCEL_MAP(counts, BPF_MAP_TYPE_HASH, 4096, struct accel_route, struct accel_counts,
	  BPF_F_NO_PREALLOC);
ACCEL_MAP(shares, BPF_MAP_TYPE_HASH, 4096, __u32, __u32, BPF_F_NO_PREALLOC);
ACCEL_MAP(none, BPF_MAP_TYPE_ARRAY, 1, __u32, struct accel_counts, 0);
ACCEL_MAP(off, BPF_MAP_TYPE_ARRAY, 1, __u32, __u32, 0);
/* 1: no pairs, so that `age` need not walk */
ACCEL_MAP(unpaired, BPF_MAP_TYPE_ARRAY, 1, __u32, __u32, 0);
ACCEL_MAP(guarded, BPF_MAP_TYPE_ARRAY, 1, __u32, __u32, 0);
ACCEL_MAP(drained, BPF_MAP_TYPE_HASH, ACCEL_DRAINED, __u64, __u8, BPF_F_NO_PREALLOC);

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
} unjudged SEC(".maps");

static __always_inline const struct accel_config *accel_config_lookup(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&config, &zero);
}

/* Returns whether enrolment and redirection are disabled: by configuration, or as the module is
 * being detached. */
static __always_inline int accel_is_off(const struct accel_config *cfg)
{
	__u32 zero = 0, *leaving = bpf_map_lookup_elem(&off, &zero);

	return !cfg || cfg->mode == ACCEL_OFF || (leaving && *leaving);
}

static __always_inline struct accel_end *accel_end_lookup(__u64 cookie)
{
	return bpf_map_lookup_elem(&ends, &cookie);
}

/* Sets `unpaired` and returns the previous value. It is reset after a pair was added to `ends`, so
 * that a later walk finds the pair. */
static __always_inline int accel_unpaired_set(int is)
{
	__u32 zero = 0, *was = bpf_map_lookup_elem(&unpaired, &zero);

	return was && __sync_lock_test_and_set(was, is);
}

static __noinline struct accel_counts *accel_counts_get(__u32 client, __u32 server)
{
	struct accel_route route = {client, server};
	struct accel_counts *c = bpf_map_lookup_elem(&counts, &route);
	__u32 zero = 0;

	if (c)
		return c;
	c = bpf_map_lookup_elem(&none, &zero);
	if (c)
		bpf_map_update_elem(&counts, &route, c, BPF_NOEXIST);
	return bpf_map_lookup_elem(&counts, &route);
}

#define accel_count(client, server, member, n)                                   \
	do {                                                                     \
		struct accel_counts *counts_ = accel_counts_get(client, server); \
		if (counts_)                                                     \
			__sync_fetch_and_add(&counts_->member, n);               \
	} while (0)

static __always_inline void accel_refusal_count(__u32 client, __u32 server, enum accel_reason why)
{
	if (why < ACCEL_REASONS)
		accel_count(client, server, refused[why], 1);
}

/* Returns the number of enrolled clients of a service; NULL: none yet, or the node itself. */
static __always_inline __u32 *accel_share_lookup(__u32 service)
{
	return service ? bpf_map_lookup_elem(&shares, &service) : 0;
}

static __always_inline void accel_share_take(__u32 service)
{
	__u32 none = 0, *share;

	if (service && !accel_share_lookup(service))
		bpf_map_update_elem(&shares, &service, &none, BPF_NOEXIST);
	share = accel_share_lookup(service);
	if (share)
		__sync_fetch_and_add(share, 1);
}

static __always_inline void accel_share_release(__u32 service)
{
	__u32 *share = accel_share_lookup(service);

	if (share)
		__sync_fetch_and_add(share, -1);
}

/* Makes an end use TCP from now on; the first reason is counted. The compare-and-swap is the full
 * barrier that accel_pair_remove and the last check of stop in accel_message_handle rely on. */
static __always_inline void accel_end_stop(struct accel_end *e, enum accel_reason why)
{
	if (!e->stop && !__sync_val_compare_and_swap(&e->stop, 0, why) && e->is_client)
		accel_refusal_count(e->client, e->server, why);
}

/* Returns whether a module must see the packets between two network namespaces. */
static __always_inline int accel_must_be_visible(__u64 one, __u64 other)
{
	const struct accel_service *s = bpf_map_lookup_elem(&members, &one),
				   *t = bpf_map_lookup_elem(&members, &other);

	return one != other && ((s ? s->flags : 0) | (t ? t->flags : 0)) & ACCEL_WITHIN;
}

#endif
