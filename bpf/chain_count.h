/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Counters of a chain: packets at its head, and packets whose verdict in a module is not
 * KERB_NEXT. */
#ifndef KERB_CHAIN_COUNT_H
#define KERB_CHAIN_COUNT_H

struct kerb_count {
	__u64 packets, bytes;
};

/* Verdicts other than KERB_NEXT. */
enum kerb_exit {
	KERB_EXIT_DROP = 0,
	KERB_EXIT_REPLY = 1,
	KERB_EXIT_REDIRECT = 2,
	KERB_EXIT_DEFERRED = 3, /* a deferred redirect: the following modules see the packet */
	KERB_EXITS = 4,
};

/* Counters of a chain on one CPU: packets at its head, and KERB_EXITS counters for each module, in
 * their order. The packets that a module has seen and passed are computed from these, so that a
 * packet that passes the whole chain is counted once. */
struct kerb_counts {
	struct kerb_count in;
	/* length of the present packet at the head, as modules may change that of the context. Not
	 * on the stack, which large modules need completely on old kernels. */
	__u64 len;
	__u64 sample; /* number of the next packet that runs in the timed copy (chain_latency.h) */
	struct kerb_count exits[];
};

/* An array of the counters of all CPUs in one value. The lookup in a per-CPU map would take about
 * twice the instructions: here the address is a constant in the program. The linker inserts it, and
 * sets the size of the value and the constants (internal/dataplane/counts.go). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct kerb_counts));
} kerb_counts SEC(".maps");

const volatile __u64 kerb_cpus = 1;
const volatile __u64 kerb_counts_size = sizeof(struct kerb_counts); /* for one CPU */

/* Returns the counters of this CPU; NULL only for the verifier. In assembler: clang would multiply
 * into the register of the constant, where the linker could not put the constant into the
 * instruction. */
static __always_inline struct kerb_counts *counts_get(void)
{
	__u64 at = ((__u64 (*)(void))BPF_FUNC_get_smp_processor_id)(), size = kerb_counts_size;

	if (at >= kerb_cpus)
		return 0;
	asm volatile("%0 *= %1" : "+r"(at) : "r"(size));
	return (void *)&kerb_counts + at;
}

#ifdef KERB_XDP_FRAGS
/* Offset in struct xdp_buff of the flags, and the mask of XDP_FLAGS_HAS_FRAGS, which struct xdp_md
 * lacks. The linker sets them (internal/dataplane/skb.go), and puts them into the instructions as
 * long as each is read in one place only. */
const volatile __u32 kerb_xdp_flags = 0;
const volatile __u32 kerb_xdp_has_frags = 0;
const volatile _Bool kerb_xdp_cast = 0; /* programs can read them: Linux 6.2 */

/* The agent replaces calls of this number, which is no helper, by calls of the kfunc
 * bpf_cast_to_kern_ctx, which the verifier turns into a move (internal/dataplane/kfunc.go). */
static const void *(*const kerb_cast_to_kern_ctx)(void *ctx) = (void *)0x6b6572;

/* Returns whether the frame is known to be in one buffer. */
static __always_inline int frame_is_linear(kerb_ctx *ctx)
{
	if (!kerb_xdp_cast)
		return 0;
	return !(*(const __u32 *)(kerb_cast_to_kern_ctx(ctx) + kerb_xdp_flags) &
		 kerb_xdp_has_frags);
}
#endif

/* Returns the length of the frame. The helper is called only for multi-buffer frames, which are
 * rare: on CPUs with return thunks, as most of AMD, a call takes as long as half of a short
 * chain. */
static __always_inline __u32 frame_len(kerb_ctx *ctx)
{
#ifdef KERB_XDP_FRAGS
	if (__builtin_expect(!frame_is_linear(ctx), 0))
		return bpf_xdp_get_buff_len(ctx);
#endif
#ifdef KERB_HOOK_XDP
	/* pointers, so that clang subtracts 64 bits: the verifier rejects 32-bit differences */
	return (void *)kerb_ctx_field(ctx, data_end) - (void *)kerb_ctx_field(ctx, data);
#else
	return ctx->len;
#endif
}

/* Starts a chain that counts, before kerb_head, as a tail call into the timed copy would invalidate
 * packet pointers. Returns 0 or more if the packet is to run in the timed copy: also after the
 * chosen number, as a traced chain without timed copy counts here, too. */
SEC("kerb/count") long kerb_count(kerb_ctx *ctx, struct kerb_pkt *pkt)
{
	struct kerb_counts *c = counts_get();
	__u64 n;

	pkt->ctx = ctx;
	pkt->len = frame_len(ctx);
	if (!c)
		return -1;
	n = c->in.packets;
	c->in.packets = n + 1;
	c->in.bytes += pkt->len;
	c->len = pkt->len;
	return n - c->sample;
}

/* Starts a later part of a split chain, which does not count. */
SEC("kerb/enter") int kerb_enter(kerb_ctx *ctx, struct kerb_pkt *pkt)
{
	pkt->ctx = ctx;
	pkt->len = frame_len(ctx);
	return 0;
}

static __always_inline void exit_count(__u32 call, enum kerb_exit exit)
{
	__u32 place = call >> KERB_CALL_COUNT_SHIFT;
	struct kerb_counts *c;
	struct kerb_count *n;

	if (!place)
		return;
	c = counts_get();
	if (!c)
		return;
	n = &c->exits[(place - 1) * KERB_EXITS + exit];
	n->packets += 1;
	n->bytes += c->len;
}

#endif
