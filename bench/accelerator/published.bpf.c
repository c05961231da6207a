// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//go:build ignore

/* The published design (Simas 2025), rebuilt from its source, without its log lines. A socket's key
 * is its side (client or server) and the client's address and port, which destination NAT does not
 * change. A second map has the key of the peer socket for each pair of addresses and ports. Every
 * message is redirected to the socket with that key, or sent over TCP if there is none. As
 * published, keys have no network namespace, entries of the second map are never deleted, and IPv4
 * addresses on IPv6 sockets have another form than on IPv4 sockets. */
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

enum { CLIENT, SERVER };
enum { IPV4 = 2, SOCKETS = 65536 };

struct socket_key {
	__u32 ip[4]; /* of the client */
	__u16 port;
	__u8 side, zero;
};

struct connection {
	__u32 local_ip[4], remote_ip[4];
	__u16 local_port, remote_port;
};

struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, SOCKETS);
	__type(key, struct socket_key);
	__type(value, __u64);
} sockets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SOCKETS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct connection);
	__type(value, struct socket_key);
} peers SEC(".maps");

/* All fields are always loaded. Otherwise the compiler merges two loads into one with a variable
 * offset, which the verifier rejects on a context. */
#define CTX(field) (*(volatile __u32 *)&(field))

#define ADDRESS(to, ctx, ip4, ip6) \
	do { \
		__u32 four = CTX((ctx)->family) == IPV4, a_ = CTX((ctx)->ip4), \
		      a0_ = CTX((ctx)->ip6[0]), a1_ = CTX((ctx)->ip6[1]), \
		      a2_ = CTX((ctx)->ip6[2]), a3_ = CTX((ctx)->ip6[3]); \
		(to)[0] = four ? 0 : a0_; \
		(to)[1] = four ? 0 : a1_; \
		(to)[2] = four ? 0xffff : a2_; \
		(to)[3] = four ? bpf_ntohl(a_) : a3_; \
	} while (0)

#define CONNECTION(c, ctx) \
	do { \
		ADDRESS((c)->local_ip, ctx, local_ip4, local_ip6); \
		ADDRESS((c)->remote_ip, ctx, remote_ip4, remote_ip6); \
		(c)->local_port = CTX((ctx)->local_port); \
		(c)->remote_port = bpf_ntohl(CTX((ctx)->remote_port)); \
	} while (0)

SEC("sockops")
int add_socket(struct bpf_sock_ops *ops)
{
	__u32 op = ops->op, is_client = op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB;
	struct connection c = {};
	struct socket_key key = {};

	if (!is_client && op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		return 1;
	CONNECTION(&c, ops);
	__builtin_memcpy(key.ip, is_client ? c.local_ip : c.remote_ip, sizeof(key.ip));
	key.port = is_client ? c.local_port : c.remote_port;
	key.side = is_client ? CLIENT : SERVER;
	bpf_sock_hash_update(ops, &sockets, &key, BPF_ANY);
	key.side = is_client ? SERVER : CLIENT;
	bpf_map_update_elem(&peers, &c, &key, BPF_ANY);
	return 1;
}

SEC("sk_msg")
int redirect_message(struct sk_msg_md *msg)
{
	struct connection c = {};
	struct socket_key *peer;

	CONNECTION(&c, msg);
	peer = bpf_map_lookup_elem(&peers, &c);
	if (peer)
		bpf_msg_redirect_hash(msg, &sockets, peer, BPF_F_INGRESS);
	return SK_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
