// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//go:build ignore

/* `stamp_arrival` is the first program at the hook, for all receivers. It writes T1 into the packet
 * before any other processing, and then tail-calls the receiver's program: Kerb's chain,
 * `redirect_socket` (to an AF_XDP socket), or `copy_to_array` (the published way: an array that
 * user space polls). Without one, the packet passes to the stack. It matches IPv4 without options,
 * and UDP without checksum, to the server's port. */
#include "frame.h"

const volatile __u16 server_port;

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} receiver SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, ARRAY_SLOTS);
	__type(key, __u32);
	__type(value, struct array_slot);
} slots SEC(".maps");

__u64 last; /* number of the last packet; packets are received on one CPU */

SEC("xdp")
int stamp_arrival(struct xdp_md *ctx)
{
	__u64 now = bpf_ktime_get_ns();
	struct frame *f = frame_to(ctx, server_port);

	if (f)
		f->message.arrived = now;
	bpf_tail_call(ctx, &receiver, 0);
	return XDP_PASS;
}

SEC("xdp")
int redirect_socket(struct xdp_md *ctx)
{
	if (!frame_to(ctx, server_port))
		return XDP_PASS;
	return bpf_redirect_map(&sockets, 0, XDP_DROP);
}

SEC("xdp")
int copy_to_array(struct xdp_md *ctx)
{
	if (!frame_to(ctx, server_port))
		return XDP_PASS;
	__u64 number = last + 1;
	__u32 key = number % ARRAY_SLOTS;
	__u32 len = ctx->data_end - ctx->data;
	struct array_slot *s = bpf_map_lookup_elem(&slots, &key);

	if (!s || len > ARRAY_DATA)
		return XDP_DROP;
	/* bounds for the verifier: 1 to ARRAY_DATA */
	len = ((len - 1) & (ARRAY_DATA - 1)) + 1;
	if (bpf_xdp_load_bytes(ctx, 0, s->data, len))
		return XDP_DROP;
	s->len = len;
	last = number;
	__atomic_exchange_n(&s->number, number, __ATOMIC_SEQ_CST);
	return XDP_DROP;
}

char _license[] SEC("license") = "Dual BSD/GPL";
