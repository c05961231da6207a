/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Rules that refer to named sets. They are in no tree: a packet is compared with them in order, and
 * then the trees are searched for an earlier rule. Sets are looked up only for packets that match
 * the rest of such a rule. */
#ifndef FW_SET_H
#define FW_SET_H

#include "classify.h"

#define FW_SET_RULES 64 /* per direction and family at most; mirrored in sets.go */

enum fw_set_field {
	FW_SET_SRC = 0,
	FW_SET_DST = 1,
	FW_SET_SPORT = 2,
	FW_SET_DPORT = 3,
	FW_SET_FIELDS = 4,
};

/* A rule with sets, in the pages of the tree. */
struct fw_set_rule {
	__u64 set[FW_SET_FIELDS]; /* identities, 0: the field has no set */
	__u32 rule;
	__u32 next; /* address, 0: none */
	__u32 rest; /* the root of all rules without sets */
	__u32 unused[5];
};

static __always_inline int fw_in_set(struct fw_flow *s, const struct fw_set_rule *r, __u32 field)
{
	__u32 v6 = s->family != 4 && field <= FW_SET_DST;
	__be32 *word = s->set_key.element.word;

	s->set_id = r->set[field];
	if (!s->set_id)
		return 1;
	word[1] = word[2] = word[3] = 0;
	if (field >= FW_SET_SPORT) {
		word[0] = bpf_htonl(s->word[FW_DIM_SPORT - FW_SET_SPORT + field]);
	} else if (!v6) {
		word[0] = bpf_htonl(s->word[field]);
	} else {
#pragma unroll
		for (int i = 0; i < 4; i++)
			word[i] = bpf_htonl(s->word[4 * field + i]);
	}
	return kerb_set_contains(&s->set_id, &s->set_key, v6);
}

/* If the rule with sets at an address matches, stores it in s->best and returns 0, otherwise
 * returns the address of the next one. Stores FW_LOST if the list is broken. Global, so that the
 * verifier checks it once and separately. */
__noinline int fw_set_rule_try(__u32 address)
{
	struct fw_flow *s = fw_flow();
	struct fw_set_rule *r;

	if (!s)
		return 0;
	r = fw_memory(s, address, sizeof(*r));
	if (!r) {
		s->root = FW_ROOT_SETS;
		return 0;
	}
	s->root = r->rest;
	if (!fw_matches(s, r->rule) || !fw_in_set(s, r, FW_SET_SRC) ||
	    !fw_in_set(s, r, FW_SET_DST) || !fw_in_set(s, r, FW_SET_SPORT) ||
	    !fw_in_set(s, r, FW_SET_DPORT))
		return r->next;
	s->best = r->rule;
	return 0;
}

/* Searches the rules that are in no tree, and moves the root past them. */
static __noinline void fw_search_set_rules(struct fw_flow *s)
{
	if (!(s->root & FW_ROOT_HASH)) {
		__u32 at = s->root & ~FW_ROOT_SETS;

		for (int i = 0; i < FW_SET_RULES; i++) {
			at = fw_set_rule_try(at);
			if (!at)
				break;
		}
	}
	if (s->root & FW_ROOT_HASH)
		fw_search_hash(s);
}

/* Returns the decision of the rules for the words of s, FW_NO_RULE or FW_LOST. */
static __always_inline __u32 fw_classify(struct fw_flow *s, const struct fw_values *v)
{
	*(volatile __u32 *)&s->root = fw_root(v, s->asked, s->family == 4);
	s->best = FW_NO_RULE;
	if (s->root >= FW_ROOT_SETS)
		fw_search_set_rules(s);
	fw_search(s);
	if (!shallow && s->class[FW_NUMBERS] && s->best != FW_LOST)
		fw_search_bitmap(s);
	if (s->best >= FW_LOST)
		return s->best;
	if (s->family == 4) {
		struct fw_rule4 *r = fw_rule4_at(s, s->best);

		return r ? r->l4.decision : FW_LOST;
	} else {
		struct fw_rule6 *r = fw_rule6_at(s, s->best);

		return r ? r->l4.decision : FW_LOST;
	}
}

#endif
