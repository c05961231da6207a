/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* First match over the rules. A rule is a box in the space of the words of struct fw_flow;
 * compile.go cuts that space into binary trees whose leaves are short rule lists in order. The
 * search is one flat loop over 8-byte nodes. Its length is bounded by FW_STEPS, which separate.go
 * guarantees for every path, so that the verifier of Linux 5.10 accepts it. What it keeps (best,
 * forks) lies in memory: unknown to the verifier, which so takes one round of the loop for
 * another.
 *
 * Where nearly all rules compare the same bits, as exact ones do, these are in a hash, see hash.go:
 * a packet reads one bucket, then searches the trees of the others.
 *
 * Rules that no tree separates are in a bitmap, see bitmap.go. The same loop finds the class of
 * each field's value; fw_search_bitmap then takes the AND of what the classes match. Everything is
 * in the pages of one map, and an address is the number of a word in it. */
#ifndef FW_CLASSIFY_H
#define FW_CLASSIFY_H

#include "flow.h"

#define FW_STEPS   128	/* nodes visited per packet at most; mirrored in compile.go */
#define FW_SHALLOW 48	/* by rule sets that are shallow; mirrored in separate.go */
#define FW_CHUNK 512  /* nodes per map value: one page */

/* A node: value in bits 0-31, child in 32-47 (offset in the chunk, in bytes), kind in 48-55, shift
 * in 56-63. Kinds up to FW_NODE_CUT are offsets of words (in bytes) to compare with value: at most,
 * then child, else the node after child. */
enum fw_node {
	FW_NODE_CUT = 60,
	FW_NODE_RULE = 64,  /* does rule value match? else continue at child */
	FW_NODE_MATCH = 65, /* rule value matches everything that comes here */
	FW_NODE_JUMP = 66,  /* continue in chunk value at child */
	/* continue at child, then in chunk value where the node after child says, if rules from its
	 * value on can still win */
	FW_NODE_FORK = 67,
	FW_NODE_END = 68,   /* nothing (more) matches here */
	FW_NODE_CLASS = 72, /* plus a field: value is the address of its class's record */
	/* plus offset of a word: continue at child plus (word - value) >> shift nodes, of
	 * FW_TABLE */
	FW_NODE_TABLE = 128,
};

#define FW_TABLE 64

/* notes: in kerb.yaml; the value is the slot of the rule's hits */
#define FW_NOTE_RULE 1

/* A decision in a word: slot in bits 0-15, drop reason in bits 16-23, whether the sender is
 * notified of the drop, and, for a rule, whether it has a limit and whether packets are reported;
 * mirrored in control.go. */
#define FW_DENY(slot, reason) ((__u32)(reason) << 16 | (slot))
#define FW_DENIED	      (0xffU << 16)
#define FW_REJECT	      (1U << 24)
#define FW_LIMIT	      (1U << 25)
#define FW_LOG		      (1U << 26)

#define FW_SLOTS 20480 /* of hit counters: 10,000 rules, the 10,000 before them, and others */

#define FW_NO_RULE 0xffffffff
#define FW_LOST	   0xfffffffe /* the tree is broken: no packet passes by accident */

struct fw_chunk {
	__u64 node[FW_CHUNK];
};

#define FW_FIELDS  5 /* of a bitmap: source, destination, their ports, protocol */
#define FW_NUMBERS FW_FIELDS /* the record of the numbers of its rules */
#define FW_BLOCKS  20 /* of a bitmap, at most; mirrored in bitmap.go */
#define FW_WORDS   8 /* of a block: a bit per rule */
#define FW_NUMBER_BYTES (FW_WORDS * 64 * sizeof(__u32))

/* By block: the address of its row of FW_WORDS words, 0 if it has no bits; for FW_NUMBERS, the
 * addresses of its rule numbers, 0 after the last. */
struct fw_record {
	__u32 at[FW_BLOCKS];
	__u32 unused[32 - FW_BLOCKS];
};

/* Of a root: the rest is the address of a hash, or of the first rule with sets, see set.h. */
#define FW_ROOT_HASH  (1U << 31)
#define FW_ROOT_SETS  (1U << 30)
#define FW_HASH_WORDS 5 /* of a mask: pairs of address words, and protocol and ports */
#define FW_BUCKET     8 /* entries: a rule's number and, in the upper half, bits of its hash */

/* The only rule that can match among those that compare the bits of mask: see hash.go. */
struct fw_hash {
	__u64 mask[FW_HASH_WORDS], seed;
	__u32 first, buckets; /* address of the first one, number of them */
	__u32 rest;	      /* the root of all other rules */
	__u32 unused;
};

/* Ports are start and span: x matches if x - start <= span. */
struct fw_l4rule {
	__u16 sport, sports, dport, dports;
	__u8 proto, proto_mask;
	__u16 limit; /* number of it, with FW_LIMIT or FW_LOG */
	__u32 decision;
};

struct fw_rule4 {
	__u64 mask, value; /* words 0 and 1 as they lie in memory */
	struct fw_l4rule l4;
};

struct fw_rule6 {
	__u64 mask[4], value[4];
	struct fw_l4rule l4;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fw_chunk);
} tree SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fw_rule4);
} rules4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fw_rule6);
} rules6 SEC(".maps");

/* Elements of a half: the maps hold the rules twice. 0: once, because they are large. */
KERB_CONFIG(__u32, tree_half, 0);
KERB_CONFIG(__u32, rules4_half, 0);
KERB_CONFIG(__u32, rules6_half, 0);

/* Each search is in one tree, of at most FW_SHALLOW nodes per packet, and without a bitmap, as in
 * most rule sets. The verifier takes longer for a search of FW_STEPS than for all other code. */
KERB_CONFIG(__u8, shallow, 0);

static __always_inline struct fw_chunk *fw_chunk_at(struct fw_flow *s, __u32 id)
{
	s->chunk = s->half * tree_half + id;
	return bpf_map_lookup_elem(&tree, &s->chunk);
}

static __always_inline struct fw_rule4 *fw_rule4_at(struct fw_flow *s, __u32 id)
{
	s->rule = s->half * rules4_half + id;
	return bpf_map_lookup_elem(&rules4, &s->rule);
}

static __always_inline struct fw_rule6 *fw_rule6_at(struct fw_flow *s, __u32 id)
{
	s->rule = s->half * rules6_half + id;
	return bpf_map_lookup_elem(&rules6, &s->rule);
}

static __always_inline __u32 fw_root(const struct fw_values *v, __u32 dir, int v4)
{
	if (dir == FW_EGRESS)
		return v4 ? v->root_egress4 : v->root_egress6;
	return v4 ? v->root_ingress4 : v->root_ingress6;
}

static __always_inline int fw_l4_matches(const struct fw_l4rule *r, const struct fw_flow *s)
{
	return (s->word[FW_DIM_PROTO] & r->proto_mask) == r->proto &&
	       s->word[FW_DIM_SPORT] - r->sport <= r->sports &&
	       s->word[FW_DIM_DPORT] - r->dport <= r->dports;
}

static __always_inline int fw_matches4(struct fw_flow *s, __u32 id)
{
	struct fw_rule4 *r = fw_rule4_at(s, id);

	return r && (s->pair[0] & r->mask) == r->value && fw_l4_matches(&r->l4, s);
}

static __always_inline int fw_matches6(struct fw_flow *s, __u32 id)
{
	struct fw_rule6 *r = fw_rule6_at(s, id);

	return r && (s->pair[0] & r->mask[0]) == r->value[0] &&
	       (s->pair[1] & r->mask[1]) == r->value[1] &&
	       (s->pair[2] & r->mask[2]) == r->value[2] &&
	       (s->pair[3] & r->mask[3]) == r->value[3] && fw_l4_matches(&r->l4, s);
}

/* Remembers the second tree of a fork; second holds its node in the chunk and its first rule. */
static __always_inline void fw_fork_push(struct fw_flow *s, __u32 chunk, __u64 second)
{
	struct fw_fork *fork = &s->fork[s->forks++ & (FW_FORKS - 1)];

	fork->chunk = chunk;
	fork->node = second >> 32;
	fork->first = second;
}

/* Resumes the tree remembered last, or returns an END instead if none of its rules can win any
 * more. Returns its node. */
static __always_inline __u32 fw_fork_pop(struct fw_flow *s)
{
	struct fw_fork *fork = &s->fork[--s->forks & (FW_FORKS - 1)];

	if (fork->first >= s->best)
		fork->chunk = fork->node = 0;
	s->chunk = fork->chunk;
	return *(volatile __u32 *)&fork->node;
}

/* The memory at an address, a multiple of size, which is a power of two up to a page's. */
static __always_inline void *fw_memory(struct fw_flow *s, __u32 address, const __u32 size)
{
	__u64 at = address % FW_CHUNK * sizeof(__u64);
	struct fw_chunk *chunk = fw_chunk_at(s, address / FW_CHUNK);

	if (!chunk)
		return NULL;
	kerb_bound(at, sizeof(*chunk) - size);
	return (void *)chunk + at;
}

static __always_inline int fw_matches(struct fw_flow *s, __u32 id)
{
	return s->family == 4 ? fw_matches4(s, id) : fw_matches6(s, id);
}

static __always_inline __u64 fw_hash_add(__u64 hash, __u64 word)
{
	hash = (hash ^ word) * 0x9e3779b97f4a7c15;
	return hash ^ hash >> 32;
}

static __always_inline __u64 fw_hash_of(const struct fw_flow *s, const struct fw_hash *h)
{
	__u64 hash = fw_hash_add(h->seed, s->pair[0] & h->mask[0]);

	if (s->family != 4) {
		hash = fw_hash_add(hash, s->pair[1] & h->mask[1]);
		hash = fw_hash_add(hash, s->pair[2] & h->mask[2]);
		hash = fw_hash_add(hash, s->pair[3] & h->mask[3]);
	}
	return fw_hash_add(hash, ((__u64)s->word[FW_DIM_PROTO] << 32 |
				  s->word[FW_DIM_SPORT] << 16 | s->word[FW_DIM_DPORT]) &
					 h->mask[4]);
}

/* Stores the only matching rule of the hash at the root in s->best if it precedes the current one,
 * and moves the root past the hash. fw_search returns FW_LOST for a root that does not move. */
static __always_inline void fw_search_hash(struct fw_flow *s)
{
	struct fw_hash *h = fw_memory(s, s->root & ~FW_ROOT_HASH, sizeof(*h));
	__u32 rule = FW_NO_RULE;
	__u64 hash, *bucket;

	if (!h)
		return;
	hash = fw_hash_of(s, h);
	bucket = fw_memory(s, h->first + ((hash >> 32) * h->buckets >> 32) * FW_BUCKET,
			   FW_BUCKET * sizeof(*bucket));
	if (!bucket)
		return;
	s->root = h->rest;
#pragma unroll
	for (int i = 0; i < FW_BUCKET; i++)
		if (bucket[i] >> 32 == (__u32)hash)
			rule = bucket[i];
	if (rule < s->best && fw_matches(s, rule))
		s->best = rule;
}

/* Finds the first rule of the trees that matches the words of s, and the classes of the words.
 * Stores it in s->best if it precedes the current one, or FW_LOST. */
static __always_inline void fw_search(struct fw_flow *s)
{
	struct fw_chunk *chunk;
	__u32 at = s->root, left = shallow ? FW_SHALLOW : FW_STEPS;

	chunk = fw_chunk_at(s, at / FW_CHUNK);
	at *= sizeof(chunk->node[0]);
	s->forks = 0;
	s->class[FW_NUMBERS] = 0;
	if (!chunk)
		goto lost;
	for (; left; left--) {
		__u64 node, kind;
		__u32 value;

		kerb_bound(at, 0xff8); /* FW_CHUNK nodes */
		node = *(__u64 *)((void *)chunk + at);
		kind = node >> 48;
		kerb_opaque(kind); /* the comparison below must be with kind itself */
		value = node;
		at = node >> 32;
		if (kind <= FW_NODE_CUT) {
			if (*(__u32 *)((void *)s->word + kind) > value)
				at += sizeof(node);
			continue;
		}
		if (kind & FW_NODE_TABLE) {
			__u32 word = *(__u32 *)((void *)s->word + (kind & FW_NODE_CUT)),
			      shift = kind >> 8;

			at += ((word - value) >> (shift & 31) & (FW_TABLE - 1)) * sizeof(node);
			continue;
		}
		if (kind == FW_NODE_RULE && value < s->best && !fw_matches(s, value))
			continue;
		if (kind == FW_NODE_FORK) {
			fw_fork_push(s, value,
				     chunk->node[(at / sizeof(node) + 1) & (FW_CHUNK - 1)]);
			continue;
		}
		if (kind == FW_NODE_JUMP) {
			s->chunk = value;
		} else {
			if (kind >= FW_NODE_CLASS) {
				kerb_bound(kind, FW_CLASSES - 1);
				s->class[kind] = value;
			} else if (kind != FW_NODE_END && value < s->best) {
				s->best = value;
			}
			if (!s->forks)
				return;
			at = fw_fork_pop(s);
		}
		chunk = fw_chunk_at(s, s->chunk);
		if (!chunk)
			break;
	}
lost:
	s->best = FW_LOST;
}

/* Returns whether a rule of the block is in all classes. Stores these rules in s->bits. */
static __always_inline int fw_matches_block(struct fw_flow *s, struct fw_record **record, __u32 b)
{
	__u64 *row[FW_FIELDS], any = 0;

#pragma unroll
	for (int i = 0; i < FW_FIELDS; i++) {
		if (!record[i]->at[b])
			return 0;
		row[i] = fw_memory(s, record[i]->at[b], FW_WORDS * sizeof(__u64));
		if (!row[i])
			return 0;
	}
#pragma unroll
	for (int i = 0; i < FW_WORDS; i++) {
		s->bits[i] = row[0][i] & row[1][i] & row[2][i] & row[3][i] & row[4][i];
		any |= s->bits[i];
	}
	return any != 0;
}

/* Returns the number of the first rule in s->bits. */
static __always_inline __u32 fw_first_bit(struct fw_flow *s)
{
	__u32 *numbers = fw_memory(s, s->numbers, FW_NUMBER_BYTES), bit = 0;

	if (!numbers)
		return FW_LOST;
	for (int i = FW_WORDS - 1; i >= 0; i--)
		if (s->bits[i])
			bit = i * 64 + __builtin_ctzll(s->bits[i]);
	kerb_bound(bit, FW_WORDS * 64 - 1);
	return numbers[bit];
}

/* Finds the first matching rule of the bitmap. Stores it in s->best if it precedes the current
 * one. */
static __always_inline void fw_search_bitmap(struct fw_flow *s)
{
	struct fw_record *record[FW_FIELDS + 1];
	__u32 first;

	s->numbers = 0;
#pragma unroll
	for (int i = 0; i < FW_FIELDS + 1; i++) {
		record[i] = fw_memory(s, s->class[i], sizeof(*record[i]));
		if (!record[i])
			goto lost;
	}
	for (__u32 b = 0; b < FW_BLOCKS; b++) {
		__u32 at = record[FW_NUMBERS]->at[b], *numbers;

		if (!at)
			return;
		numbers = fw_memory(s, at, FW_NUMBER_BYTES);
		if (!numbers)
			goto lost;
		if (*numbers >= s->best)
			return;
		if (fw_matches_block(s, record, b)) {
			s->numbers = at;
			break;
		}
	}
	if (!s->numbers)
		return;
	first = fw_first_bit(s);
	if (first < s->best)
		s->best = first;
	return;
lost:
	s->best = FW_LOST;
}

#endif
