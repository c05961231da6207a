/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What a chain counts: packets at its head, and those that a module does not leave to the next. */
#ifndef KERB_CHAIN_COUNT_H
#define KERB_CHAIN_COUNT_H

struct kerb_count {
	__u64 packets, bytes;
};

/* Why a packet did not leave a module as it leaves with KERB_NEXT. */
enum kerb_exit {
	KERB_EXIT_DROP = 0,
	KERB_EXIT_REPLY = 1,
	KERB_EXIT_REDIRECT = 2,
	KERB_EXIT_DEFERRED = 3, /* a deferred redirect: the modules behind see the packet, too */
	KERB_EXITS = 4,
};

/* What a chain has done on a CPU: packets at its head, and KERB_EXITS counts for each module, in
 * their order. What a module has seen and passed on follows from these: a packet that passes is
 * counted once, however long the chain is. */
struct kerb_counts {
	struct kerb_count in;
	/* Of the packet at the head: modules may change that of the context. It is not on the
	 * stack, of which large modules need all that old kernels leave. */
	__u64 len;
	__u64 sample; /* number of the next packet that runs in the timed copy (chain_latency.h) */
	struct kerb_count exits[];
};

/* The counts of all CPUs, one behind the other. A per-CPU map would do the same, but its lookup
 * takes about twice the instructions: here the address is part of the program. The linker puts it
 * there, gives the value its size, and sets the constants (internal/dataplane/counts.go). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct kerb_counts));
} kerb_counts SEC(".maps");

const volatile __u64 kerb_cpus = 1;
const volatile __u64 kerb_counts_size = sizeof(struct kerb_counts); /* of a CPU */

/* Never NULL, but for the verifier. In assembler, as the compiler computes into the register of the
 * constant, where the linker could not put the constant into the instruction. */
static __always_inline struct kerb_counts *chain_counts(void)
{
	__u64 at = ((__u64 (*)(void))BPF_FUNC_get_smp_processor_id)(), size = kerb_counts_size;

	if (at >= kerb_cpus)
		return 0;
	asm volatile("%0 *= %1" : "+r"(at) : "r"(size));
	return (void *)&kerb_counts + at;
}

#ifdef KERB_XDP_FRAGS
/* Where struct xdp_buff says whether there are buffers behind the first, which struct xdp_md does
 * not show: offset and mask. The linker sets them (internal/dataplane/skb.go), and puts them into
 * the instructions as long as each is read in one place. */
const volatile __u32 kerb_xdp_flags = 0;
const volatile __u32 kerb_xdp_has_frags = 0;
const volatile _Bool kerb_xdp_cast = 0; /* a program can read it, from Linux 6.2 on */

/* The agent turns calls of this number, which no helper has, into calls of bpf_cast_to_kern_ctx,
 * which the kernel makes a move (internal/dataplane/kfunc.go). */
static const void *(*const kerb_cast_to_kern_ctx)(void *ctx) = (void *)0x6b6572;

/* Whether the frame is known to be in one buffer. */
static __always_inline int is_linear(kerb_ctx *ctx)
{
	if (!kerb_xdp_cast)
		return 0;
	return !(*(const __u32 *)(kerb_cast_to_kern_ctx(ctx) + kerb_xdp_flags) &
		 kerb_xdp_has_frags);
}
#endif

/* Length of the frame. The helper is for the rare frame of several buffers: where returns are
 * guarded, as on most AMD processors, one call takes as long as half of a short chain. */
static __always_inline __u32 frame_len(kerb_ctx *ctx)
{
#ifdef KERB_XDP_FRAGS
	if (__builtin_expect(!is_linear(ctx), 0))
		return bpf_xdp_get_buff_len(ctx);
#endif
#ifdef KERB_HOOK_XDP
	/* as pointers: of these the verifier takes no 32-bit difference */
	return (void *)kerb_ctx_field(ctx, data_end) - (void *)kerb_ctx_field(ctx, data);
#else
	return ctx->len;
#endif
}

/* Begins a chain that counts, before kerb_head: while no register holds a packet pointer, which a
 * tail call would end. Returns what is not negative if the packet is to run in the timed copy: the
 * number that was chosen may have passed, as a traced chain counts here, too. */
SEC("kerb/count") long kerb_count(kerb_ctx *ctx, struct kerb_pkt *pkt)
{
	struct kerb_counts *c = chain_counts();
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

/* Begins a program that does not count: a later part of a split chain. */
SEC("kerb/enter") int kerb_enter(kerb_ctx *ctx, struct kerb_pkt *pkt)
{
	pkt->ctx = ctx;
	pkt->len = frame_len(ctx);
	return 0;
}

static __always_inline void count_exit(__u32 call, enum kerb_exit exit)
{
	__u32 place = call >> KERB_CALL_COUNT_SHIFT;
	struct kerb_counts *c;
	struct kerb_count *n;

	if (!place)
		return;
	c = chain_counts();
	if (!c)
		return;
	n = &c->exits[(place - 1) * KERB_EXITS + exit];
	n->packets += 1;
	n->bytes += c->len;
}

#endif
