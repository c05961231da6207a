// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* One operation of rewrite.h per run, chosen by a map. */
#define KERB_FIXED_LAYOUT
#include <kerb/types.h>

#ifdef KERB_HOOK_XDP
#define HOOK "xdp"
__attribute__((noinline)) int kerb_head(struct xdp_md *ctx, struct kerb_pkt *pkt);
#else
#define HOOK "tc"
__attribute__((noinline)) int kerb_head(struct __sk_buff *ctx, struct kerb_pkt *pkt);
#endif

#include "../../chain.bpf.c"
#include <kerb/module.h>

enum operation {
	OP_NONE,
	OP_SADDR4,
	OP_DADDR4,
	OP_SADDR6,
	OP_DADDR6,
	OP_SPORT,
	OP_DPORT,
	OP_TTL,
	OP_DECREMENT_TTL,
	OP_SWAP,
	OP_LOAD,
	OP_STORE,
	OP_ROOM,
	OP_PAYLOAD,
	OP_HASH,
	OP_NOW,
	OP_LEN,
	OP_REMOVE,
};

struct request {
	__u32 op;
	__s32 number; /* port (network order), TTL, offset, seed or delta */
	__u8 bytes[40];
};

struct response {
	__s64 rc;
	__u64 value, value2;
	__u8 bytes[16];
	__u64 l3, l4;
	__u32 len;
	__u8 family, proto, flags, outcome;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct request);
} requests SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct response);
} responses SEC(".maps");

static __always_inline int swap(struct kerb_pkt *pkt)
{
	int rc = kerb_swap_macs(pkt) ?: kerb_swap_ips(pkt);

	return rc ?: kerb_swap_ports(pkt);
}

/* number bytes of room; bytes are the outer header, all 40 or the first 20. Negative: taken out
 * again. */
static __always_inline int room(struct kerb_pkt *pkt, const struct request *req)
{
	int rc = kerb_adjust_room(pkt, req->number, 0);

	if (!rc && req->number >= 40)
		rc = kerb_store_bytes(pkt, pkt->l3, req->bytes, 40);
	else if (!rc && req->number >= 20)
		rc = kerb_store_bytes(pkt, pkt->l3, req->bytes, 20);
	if (!rc)
		kerb_reparse(pkt);
	return rc;
}

static __always_inline int perform(struct kerb_pkt *pkt, const struct request *req,
				   struct response *res)
{
	struct in6_addr addr;

	__builtin_memcpy(&addr, req->bytes, sizeof(addr));
	switch (req->op) {
	case OP_SADDR4:
		return kerb_set_ip4_saddr(pkt, addr.in6_u.u6_addr32[0]);
	case OP_DADDR4:
		return kerb_set_ip4_daddr(pkt, addr.in6_u.u6_addr32[0]);
	case OP_SADDR6:
		return kerb_set_ip6_saddr(pkt, &addr);
	case OP_DADDR6:
		return kerb_set_ip6_daddr(pkt, &addr);
	case OP_SPORT:
		return kerb_set_sport(pkt, req->number);
	case OP_DPORT:
		return kerb_set_dport(pkt, req->number);
	case OP_TTL:
		return kerb_set_ttl(pkt, req->number);
	case OP_DECREMENT_TTL:
		return kerb_decrement_ttl(pkt);
	case OP_SWAP:
		return swap(pkt);
	case OP_LOAD:
		return kerb_load_bytes(pkt, req->number, res->bytes, sizeof(res->bytes));
	case OP_STORE:
		return kerb_store_bytes(pkt, req->number, &addr, sizeof(addr));
	case OP_ROOM:
		return room(pkt, req);
	case OP_PAYLOAD:
		res->value = kerb_payload(pkt);
		res->value2 = kerb_payload_len(pkt);
		return 0;
	case OP_HASH:
		res->value = kerb_hash(pkt, req->number);
		return 0;
	case OP_NOW:
		res->value = kerb_now();
		res->value2 = bpf_ktime_get_ns();
		return 0;
	case OP_LEN:
		return kerb_set_len(pkt, req->number);
	case OP_REMOVE:
		return kerb_remove_options(pkt);
	}
	return -EINVAL;
}

SEC(HOOK) int rewrite(kerb_ctx *ctx)
{
	struct response *res;
	struct request *req;
	struct kerb_pkt pkt;
	__u32 key = 0;

	kerb_enter(ctx, &pkt);
	kerb_head(ctx, &pkt);
	req = bpf_map_lookup_elem(&requests, &key);
	res = bpf_map_lookup_elem(&responses, &key);
	if (!req || !res)
		return 0;
	res->rc = perform(&pkt, req, res);
	res->l3 = pkt.l3;
	res->l4 = pkt.l4;
	res->len = pkt.len;
	res->family = pkt.family;
	res->proto = pkt.proto;
	res->flags = pkt.flags;
	res->outcome = pkt.outcome;
	return 2;
}
