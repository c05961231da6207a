// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Keeps what it learns of the packets that other modules decide about. */
#include <kerb/module.h>

struct exits {
	__u64 packets; /* that came here */
	__u64 calls;   /* of kerb_exit; the rest is of the last one */
	__u32 verdict, module, seen, side, reason;
	__u32 port; /* UDP destination port, host byte order */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct exits);
} exits SEC(".maps");

static __noinline struct exits *entry(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&exits, &zero);
}

static __always_inline int came(void)
{
	struct exits *e = entry();

	if (e)
		e->packets++;
	return KERB_NEXT;
}

KERB_EGRESS(pkt)
{
	return came();
}

KERB_INGRESS(pkt)
{
	return came();
}

KERB_EXIT(pkt, verdict, module, seen, side)
{
	struct exits *e = entry();
	struct udphdr *udp;

	if (!e)
		return 0;
	e->calls++;
	e->verdict = verdict;
	e->module = module;
	e->seen = seen;
	e->side = side;
	e->reason = 0;
	if (verdict != KERB_REPLY && verdict != KERB_REDIRECT)
		e->reason = kerb_exit_reason(pkt, verdict);
	kerb_note(pkt, 2, verdict); /* which is in no trace */
	kerb_forget(pkt);
	udp = kerb_udp(pkt);
	e->port = udp ? bpf_ntohs(udp->dest) : 0;
	return KERB_REDIRECT; /* is ignored */
}

KERB_LICENSE("Dual BSD/GPL");
