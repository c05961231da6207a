/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Named sets of addresses, prefixes or ports: resources of the kind Set, and the addresses of
 * services by label. The agent keeps them in three maps that all modules of the node share. A
 * module may look up sets whose references its control plane returns (sdk.Settings.Sets); without
 * any the maps are the module's own and empty.
 *
 * A replacement of a set fills the maps under a new version, then changes the version: a packet
 * sees either the old elements or the new ones. */
#ifndef KERB_SET_H
#define KERB_SET_H

#include <kerb/module.h>

#define KERB_SETS	  1024 /* mirrored in internal/dataplane/sets.go */
#define KERB_SET_ELEMENTS 524288 /* of all sets, and of replacements */

enum kerb_set_kind {
	KERB_SET_EXACT = 0,    /* addresses, ports */
	KERB_SET_PREFIXES = 1,
};

/* By identity of the set: sdk.SetID. Identity 0 has the version that each change of any set
 * changes. */
struct kerb_set {
	__u64 id;	/* first: see kerb_set_state */
	__u64 revision; /* the agent's alone */
	__u64 state;	/* version << 32 | kind, so that packets see both or neither */
};

/* IPv4 addresses and ports are in word 0, and the rest is 0. */
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

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, KERB_SET_ELEMENTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct kerb_set_prefix);
	__type(value, __u32);
} kerb_prefixes SEC(".maps");

/* The state of a set, 0: there is none. The kernel may give the memory of a set that is replaced or
 * deleted to another one while a packet reads it. It writes a new set from its begin, so that a
 * state whose id was right after it was read is that of the set. What replaced it is found then. */
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

/* Whether the set has the element whose words are in key. A set that does not exist has none. */
static __always_inline int kerb_set_contains(const __u64 *id, struct kerb_set_prefix *key, __u32 v6)
{
	__u64 state = kerb_set_state(id);

	if (!state)
		return 0;
	key->element.set = (__u32)(state >> 32) << 1 | v6;
	if ((__u32)state != KERB_SET_PREFIXES)
		return bpf_map_lookup_elem(&kerb_elements, &key->element) != NULL;
	key->prefixlen = v6 ? 160 : 64;
	return bpf_map_lookup_elem(&kerb_prefixes, key) != NULL;
}

/* Changes whenever an element of any set has changed. id is memory for a key. */
static __always_inline __u32 kerb_sets_version(__u64 *id)
{
	*id = 0;
	return kerb_set_state(id) >> 32;
}

#endif
