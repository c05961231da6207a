/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Named sets of addresses, prefixes or ports: resources of the kind Set, and addresses of services
 * selected by label. The agent keeps them in four maps that all modules of the node share. A module
 * may look up sets whose references its control plane returns (sdk.Settings.Sets); without any, the
 * maps are the module's own and empty.
 *
 * To replace a set, the agent fills the maps under a new version, then changes the version: a
 * packet sees either the old elements or the new ones. */
#ifndef KERB_SET_H
#define KERB_SET_H

#include <kerb/module.h>

#define KERB_SETS	  1024 /* mirrored in internal/dataplane/sets.go */
#define KERB_SET_ELEMENTS 524288 /* of all sets, and of replacements */
#define KERB_SET_BUCKETS  65536
#define KERB_SET_BUCKET	  8 /* elements; mirrored in sdk/settable.go, with the hash */

enum kerb_set_kind {
	KERB_SET_PREFIXES = 1,
	KERB_SET_TABLE = 2, /* addresses, ports: in kerb_table where it has room for them */
};

/* By identity of the set: sdk.SetID. The version of identity 0 changes with each change of any
 * set. */
struct kerb_set {
	__u64 id;	/* first: see kerb_set_state */
	__u64 revision; /* used by the agent only */
	__u64 state;	/* version << 32 | kind, so that packets read both at once */
};

/* IPv4 addresses and ports are in word 0; the rest is 0. */
struct kerb_set_element {
	__u32 set; /* version << 1 | is it an IPv6 address? */
	__be32 word[4];
};

struct kerb_set_prefix {
	__u32 prefixlen; /* bits of element */
	struct kerb_set_element element;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, KERB_SETS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct kerb_set);
} kerb_sets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, KERB_SET_ELEMENTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct kerb_set_element);
	__type(value, __u32);
} kerb_elements SEC(".maps");

/* IPv4 addresses and ports, in one cache line, where a hash map of the kernel reads three that are
 * rarely in the cache: set << 32 | word 0 of struct kerb_set_element. 0 is free, and so are all
 * entries after it. A removed element that is not in the last used entry is 1. Elements that do not
 * fit are in kerb_elements: such a bucket has no 0. Only the agent writes, 8 bytes at once. The
 * first version on a node is random, so that it is hard to predict which elements share a
 * bucket. */
struct kerb_set_bucket {
	__u64 element[KERB_SET_BUCKET];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, KERB_SET_BUCKETS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct kerb_set_bucket);
} kerb_table SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, KERB_SET_ELEMENTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct kerb_set_prefix);
	__type(value, __u32);
} kerb_prefixes SEC(".maps");

/* The state of a set, 0 if it does not exist. While a packet reads the memory of a set that is
 * replaced or deleted, the kernel may reuse it for another set. It writes a new set from its
 * beginning, so that a state whose id is correct after it was read belongs to the set. Otherwise
 * the set is looked up again, one time, and counts as missing if the id is wrong then as well. */
static __always_inline __u64 kerb_set_state(const __u64 *id)
{
	for (int i = 0; i < 2; i++) {
		const struct kerb_set *set = bpf_map_lookup_elem(&kerb_sets, id);
		__u64 state;

		if (!set)
			break;
		state = *(const volatile __u64 *)&set->state;
		if (*(const volatile __u64 *)&set->id == *id)
			return state;
	}
	return 0;
}

/* Returns whether a bucket has the element, negative if kerb_elements may have it. */
static __always_inline int kerb_set_in_bucket(const struct kerb_set_element *element)
{
	__u64 wanted = (__u64)element->set << 32 | element->word[0];
	__u64 hash = wanted * 0x9e3779b97f4a7c15;
	const struct kerb_set_bucket *bucket;
	__u32 at;

	hash = (hash ^ hash >> 32) * 0x9e3779b97f4a7c15;
	at = hash >> 32 & (KERB_SET_BUCKETS - 1);
	bucket = bpf_map_lookup_elem(&kerb_table, &at);
	if (!bucket)
		return -1;
#pragma unroll
	for (int i = 0; i < KERB_SET_BUCKET; i++) {
		__u64 got = *(const volatile __u64 *)&bucket->element[i];

		if (got == wanted)
			return 1;
		if (!got)
			return 0;
	}
	return -1;
}

/* Returns whether the set contains the element with the words in key. A set that does not exist is
 * empty. */
static __always_inline int kerb_set_contains(const __u64 *id, struct kerb_set_prefix *key, __u32 v6)
{
	__u64 state = kerb_set_state(id);

	if (!state)
		return 0;
	key->element.set = (__u32)(state >> 32) << 1 | v6;
	if ((__u32)state == KERB_SET_TABLE && !v6) {
		int found = kerb_set_in_bucket(&key->element);

		if (found >= 0)
			return found;
	}
	if ((__u32)state != KERB_SET_PREFIXES)
		return bpf_map_lookup_elem(&kerb_elements, &key->element) != NULL;
	key->prefixlen = v6 ? 160 : 64;
	return bpf_map_lookup_elem(&kerb_prefixes, key) != NULL;
}

/* Returns a number that changes whenever an element of any set changes. id is memory for a key. */
static __always_inline __u32 kerb_sets_version(__u64 *id)
{
	*id = 0;
	return kerb_set_state(id) >> 32;
}

#endif
