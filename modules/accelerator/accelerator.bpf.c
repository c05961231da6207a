// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)

//go:build ignore

/* Local TCP connections bypass the network stack (sockmap) where that is faster and changes nothing
 * that an application relies on. */
#include <kerb/messages.h>

#include "close.h"
#include "guard.h"
#include "idle.h"
#include "listen.h"
#include "pair.h"
#include "message.h"

char _license[] SEC("license") = "Dual BSD/GPL";

static __always_inline int accel_sockops_handle(struct bpf_sock_ops *ops, int all)
{
	switch (ops->op) {
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
		accel_client_enrol(ops, all);
		break;
	case BPF_SOCK_OPS_TCP_LISTEN_CB:
		accel_listener_add(ops, all);
		break;
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		accel_offer_create(ops);
		break;
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		accel_offer_answer(ops, all);
		break;
	case BPF_SOCK_OPS_RTT_CB:
		accel_ack_handle(ops);
		break;
	case BPF_SOCK_OPS_STATE_CB:
		accel_state_handle(ops, ops->args[1]);
		break;
	}
	return 1;
}

/* On the root cgroup of the agent: sockets in the network namespaces of services. */
SEC("sockops")
int services(struct bpf_sock_ops *ops)
{
	return accel_sockops_handle(ops, 0);
}

/* On cgroups of the configuration: all sockets in them. */
SEC("sockops")
int all(struct bpf_sock_ops *ops)
{
	return accel_sockops_handle(ops, 1);
}

SEC("sk_msg/sockets")
int message(struct sk_msg_md *msg)
{
	__u64 began = kerb_message_begin();
	int verdict = accel_message_handle(msg);
	enum accel_reason why = began ? accel_plain_reason(msg) : ACCEL_OK;

	kerb_message_end(msg, began, verdict, why ? ACCEL_NOTE_PLAIN : 0, why);
	return SK_PASS;
}

/* Optional, as BPF is not an active LSM on every kernel. Called for each read of any file. */
SEC("lsm/file_permission")
int guard(unsigned long long *ctx)
{
	struct file *file = (struct file *)ctx[0];
	int mask = ctx[1];

	if ((file->f_inode->i_mode & ACCEL_S_IFMT) != ACCEL_S_IFSOCK || !(mask & ACCEL_MAY_READ))
		return 0;
	return accel_splice_check((__u64)file);
}

SEC("syscall")
int age(void *unused)
{
	const struct accel_config *cfg = accel_config_lookup();
	struct accel_age a = {.now = accel_now()};

	if (accel_is_off(cfg))
		return 0;
	accel_listeners_search();
	if (cfg->mode != ACCEL_ADAPTIVE || !cfg->idle || accel_unpaired_set(1))
		return 0;
	a.idle = cfg->idle;
	bpf_for_each_map_elem(&ends, accel_end_age, &a, 0);
	if (a.left)
		accel_unpaired_set(0);
	return a.found;
}

SEC("syscall")
int drain(void *unused)
{
	struct accel_drain d = {};

	bpf_for_each_map_elem(&ends, accel_end_drain, &d, 0);
	return d.waiting;
}
