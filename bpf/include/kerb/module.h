/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The contract of a data plane module. Include this file alone, then define
 *
 *	KERB_EGRESS(pkt)  { ... return KERB_NEXT; }	packets from the service
 *	KERB_INGRESS(pkt) { ... return KERB_NEXT; }	packets to the service
 *
 * one of them or both. The same source is compiled twice, with KERB_HOOK_XDP or KERB_HOOK_TC
 * defined by `kerb package build`, and linked into the chains that the module takes part in.
 * Directions are the service's; maps and data sections are the module's own. Constants from the
 * module's config are declared with KERB_CONFIG. */
#ifndef KERB_MODULE_H
#define KERB_MODULE_H

#include <kerb/types.h>
#include <kerb/parse.h>
#include <kerb/packet.h>
#include <kerb/rewrite.h>
#include <kerb/event.h>

#if !defined(KERB_HOOK_XDP) && !defined(KERB_HOOK_TC)
#error "build modules with 'kerb package build', which defines KERB_HOOK_XDP or KERB_HOOK_TC"
#endif

#define KERB_EGRESS(pkt)  SEC("kerb/egress") int kerb_egress(struct kerb_pkt *pkt)
#define KERB_INGRESS(pkt) SEC("kerb/ingress") int kerb_ingress(struct kerb_pkt *pkt)

/* Optional: called for each packet that another module of this chain drops, answers or redirects
 * immediately. module is the number of that module, which is the same in all chains:
 * sdk.ModuleNumber of its name; 0: unknown. seen: this module has processed the packet, because it
 * is before the other one. side is 0 for packets from the service, 1 for packets to it. The result
 * is ignored. */
#define KERB_EXIT(pkt, verdict, module, seen, side)                                   \
	SEC("kerb/exit")                                                              \
	int kerb_exit(struct kerb_pkt *pkt, __u32 verdict, __u32 module, __u32 seen, __u32 side)

/* The drop reason of a packet in KERB_EXIT, as the chain counts it (enum kerb_drop_reason), if
 * verdict is neither KERB_REPLY nor KERB_REDIRECT. */
static __always_inline __u32 kerb_exit_reason(const struct kerb_pkt *pkt, __u32 verdict)
{
	__u32 reason = pkt->reason & KERB_DROP_REASON;

	if (verdict != KERB_DROP)
		return KERB_DROP_BAD_VERDICT;
	return reason < KERB_DROP_REASONS ? reason : KERB_DROP_UNSPEC;
}

/* A constant that the agent sets from the config property of the same name before it loads the
 * program, so that the verifier removes unreachable branches. Integers and booleans; value is the
 * default. */
#define KERB_CONFIG(type, name, value) const volatile type name = value

/* Settings that the agent changes without a new program, while packets pass: the members of a
 * struct, integers and booleans. Once in a module, at file scope:
 *
 *	struct limits { __u64 rate; __u32 burst; };
 *	KERB_TUNABLES(struct limits);
 *
 * There are two halves. Packets read the half whose number kerb_tunables_half() returns; the agent
 * writes the other half, then switches. So a program must call it once per packet, and use that
 * half to the end:
 *
 *	const struct limits *l = kerb_tunables(kerb_tunables_half());
 *	if (!l)
 *		return KERB_NEXT;	never happens, but the verifier requires it
 *
 * A map with settings that change like this has elements for both halves; the control plane fills
 * the half that packets do not read (sdk.Maps.FreeHalf). The verifier does not know the values:
 * bound those that are used as an index. internal/dataplane/tunables.go depends on the layout. */
#define KERB_TUNABLES(values_type)                                                                 \
	struct kerb_tunables_map {                                                                 \
		__u64 half;                                                                        \
		char id[2][16];                                                                    \
		values_type values[2];                                                             \
	} __attribute__((aligned(8)));                                                             \
	struct {                                                                                   \
		__uint(type, BPF_MAP_TYPE_ARRAY);                                                  \
		__uint(max_entries, 1);                                                            \
		__uint(map_flags, BPF_F_MMAPABLE);                                                 \
		__type(key, __u32);                                                                \
		__type(value, struct kerb_tunables_map);                                           \
	} kerb_tunables_map SEC(".maps");                                                          \
	static __always_inline __u32 kerb_tunables_half(void)                                      \
	{                                                                                          \
		__u32 zero = 0;                                                                    \
		struct kerb_tunables_map *m = bpf_map_lookup_elem(&kerb_tunables_map, &zero);      \
		return m ? *(volatile __u64 *)&m->half & 1 : 0;                                    \
	}                                                                                          \
	static __always_inline const values_type *kerb_tunables(__u64 half)                        \
	{                                                                                          \
		__u32 zero = 0;                                                                    \
		struct kerb_tunables_map *m = bpf_map_lookup_elem(&kerb_tunables_map, &zero);      \
		if (!m)                                                                            \
			return 0;                                                                  \
		kerb_bound(half, 1);                                                               \
		return (void *)m->values + half * sizeof(values_type);                             \
	}

#define KERB_LICENSE(name) char _license[] SEC("license") = name

#endif
