// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// Redirects every byte between two sockets of one host, by the ports of their connection: for
// tests, where no two connections have the same ports.
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <kerb/messages.h>

struct key {
	__u32 local, remote; /* ports, host order */
};

struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 1024);
	__type(key, struct key);
	__type(value, __u64);
} peers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} off SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64); /* fewer than may be found: drain is run again */
	__type(key, struct key);
	__type(value, __u8);
} drained SEC(".maps");

enum { ENROLLED, REDIRECTED, COUNTS };

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, COUNTS);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

/* All sockets that were enrolled, with the address of their struct sock, for drain to go
 * through. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct key);
	__type(value, __u64);
} enrolled SEC(".maps");

/* Namespaces of services. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, __u64);
	__type(value, __u32);
} netns SEC(".maps");

volatile const __u16 only_port = 0;

/* What is read of the kernel's structures. */
struct list_head {
	struct list_head *next;
} __attribute__((preserve_access_index));

struct sk_psock {
	struct list_head ingress_msg;
} __attribute__((preserve_access_index));

struct sock {
	void *sk_user_data;
} __attribute__((preserve_access_index));

static __always_inline void count(__u32 which)
{
	__u64 *n = bpf_map_lookup_elem(&counts, &which);

	if (n)
		__sync_fetch_and_add(n, 1);
}

static __always_inline int is_off(void)
{
	__u32 zero = 0, *value = bpf_map_lookup_elem(&off, &zero);

	return !value || *value;
}

static __always_inline void enrol(struct bpf_sock_ops *ops)
{
	struct key key = { .local = ops->local_port, .remote = bpf_ntohl(ops->remote_port) };
	struct bpf_sock *sk = ops->sk;
	__u64 address = (__u64)sk;

	if (ops->op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB &&
	    ops->op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		return;
	if (!sk || is_off() || (only_port && key.local != only_port && key.remote != only_port))
		return;
	if (bpf_sock_hash_update(ops, &peers, &key, BPF_NOEXIST))
		return;
	bpf_map_update_elem(&enrolled, &key, &address, BPF_ANY);
	count(ENROLLED);
}

SEC("sockops")
int all(struct bpf_sock_ops *ops)
{
	enrol(ops);
	return 1;
}

SEC("sockops")
int services(struct bpf_sock_ops *ops)
{
	__u64 cookie = bpf_get_netns_cookie(ops);

	if (bpf_map_lookup_elem(&netns, &cookie))
		enrol(ops);
	return 1;
}

SEC("sk_msg")
int redirect(struct sk_msg_md *msg)
{
	struct key peer = { .local = bpf_ntohl(msg->remote_port), .remote = msg->local_port };
	__u64 began = kerb_message_begin();
	__u32 verdict = KERB_NEXT;

	if (!is_off() && bpf_msg_redirect_hash(msg, &peers, &peer, BPF_F_INGRESS) == SK_PASS) {
		count(REDIRECTED);
		verdict = KERB_REDIRECT;
	}
	kerb_message_end(msg, began, verdict, 1, peer.local);
	return SK_PASS;
}

/* The two lowest bits of sk_user_data are flags. */
static long look(void *map, const struct key *key, __u64 *sk, void *ctx)
{
	struct sk_psock *psock =
		(void *)((__u64)BPF_CORE_READ((struct sock *)*sk, sk_user_data) & ~7ULL);
	struct list_head *queue = &psock->ingress_msg;
	__u8 one = 1;

	if (psock && BPF_CORE_READ(psock, ingress_msg.next) == queue)
		bpf_map_update_elem(&drained, key, &one, BPF_ANY);
	return 0;
}

SEC("syscall")
int drain(void *ctx)
{
	bpf_for_each_map_elem(&enrolled, look, 0, 0);
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
