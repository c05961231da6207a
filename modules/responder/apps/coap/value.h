/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Values of resources, which user space replaces while they are read. A resource has two places;
 * version n is in place n & 1. The writer of version n sets `writing` to n, writes the place, then
 * sets `active` to n. So a reader of version n has read a consistent value if `writing` is at most
 * n + 1 afterwards, which is in the other place. Until then, the version before the active one can
 * be read, too, for duplicates. */
#ifndef RSP_COAP_VALUE_H
#define RSP_COAP_VALUE_H

#include "message.h"

#define COAP_MAX_VALUE 1024 /* also in message.go */

struct coap_version {
	__u32 active;	/* 0: no value yet */
	__u32 writing;	/* active, or active + 1 */
};

struct coap_value {
	__u64 etag;	/* bytes as in the message */
	__u64 expires;	/* ns since boot, after which requests pass; 0: never */
	__u32 max_age;	/* s, if it never expires */
	__u32 format;	/* Content-Format; COAP_ANY_FORMAT: none */
	__u8 option[4]; /* the encoded Content-Format option, after an ETag */
	__u16 len;
	__u8 option_len;
	__u8 set;
	__u8 data[COAP_MAX_VALUE];
};

/* The control plane sets the sizes of these three. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct coap_name);
	__type(value, __u32); /* number of the resource; not used for hosts */
} coap_names SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE); /* written by atomic stores */
	__type(key, __u32);		   /* number of the resource */
	__type(value, struct coap_version);
} coap_versions SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32); /* number of the resource * 2 + place */
	__type(value, struct coap_value);
} coap_values SEC(".maps");

/* Values that were set at run time. Used by the control plane only; a map, so that they persist
 * when the configuration changes or the control plane restarts. */
struct coap_setting {
	__u64 expires; /* as above */
	__u64 len;
	__u8 data[COAP_MAX_VALUE];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2048);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct coap_name);
	__type(value, struct coap_setting);
} coap_set SEC(".maps");

static __always_inline struct coap_value *coap_value_lookup(__u32 resource, __u32 version)
{
	kerb_key32 place = resource * 2 + (version & 1);

	return bpf_map_lookup_elem(&coap_values, &place);
}

/* Copies a value to offset off of the reply, in words, as bytes after the reply do not matter.
 * Returns a number that depends on all loads. */
static __always_inline __u64 coap_value_copy(__u8 *reply, __u32 off, const struct coap_value *value)
{
	__u32 len = value->len;
	__u64 all = 0;

#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < COAP_MAX_VALUE; i += 8) {
		__u64 word;

		if (i >= len)
			break;
		word = *(__u64 *)(value->data + i);
		*(__u64 *)(reply + (off & 0x3f) + i) = word;
		all |= word;
	}
	return all;
}

/* Returns whether the value of a version was not overwritten while it was read. The load of
 * `writing` has an address dependency on after, a result of these reads, so that no CPU executes it
 * earlier. */
static __always_inline int coap_value_is_consistent(struct coap_version *state, __u32 version,
						    __u64 after)
{
	kerb_bound(after, 0);
	return *(volatile __u32 *)((void *)&state->writing + after) - version < 2;
}

#endif
