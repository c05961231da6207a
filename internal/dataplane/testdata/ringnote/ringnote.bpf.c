// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Has global functions write to a ring buffer through a dynptr (Linux 5.19), which does not move
 * the packet: pointers into it stay. */
#include <kerb/module.h>

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} events SEC(".maps");

static int write_event(__u32 value)
{
	struct bpf_dynptr event;

	bpf_ringbuf_reserve_dynptr(&events, sizeof(value), 0, &event);
	bpf_dynptr_write(&event, 0, &value, sizeof(value), 0);
	bpf_ringbuf_submit_dynptr(&event, 0);
	return 0;
}

__noinline int note_number(__u32 value)
{
	return write_event(value);
}

__noinline int note_packet(kerb_ctx *ctx, __u32 value)
{
	return ctx ? write_event(value) : 0;
}

KERB_EGRESS(pkt)
{
	note_number(7);
	return KERB_NEXT;
}

KERB_INGRESS(pkt)
{
	__u8 *byte = kerb_at(pkt, 0, 1);

	if (!byte)
		return KERB_NEXT;
	note_packet(pkt->ctx, 7);
	return *byte == 7 ? KERB_DROP : KERB_NEXT;
}

KERB_LICENSE("Dual BSD/GPL");
