/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Programs that were listening before the module was attached to their service: they are found by
 * walking the file descriptors of all processes, without locks (see kernel.h). A process that exits
 * meanwhile may cut the walk short; missed programs are learnt when one of their connections
 * closes. */
#ifndef ACCEL_LISTEN_H
#define ACCEL_LISTEN_H

#include "pair.h"

#define ACCEL_MAX_TASKS (1 << 16)
#define ACCEL_MAX_FDS	(1 << 16)
#define ACCEL_SOCKFS  0x534f434b
#define ACCEL_TCP     6

struct accel_search_state {
	__u64 first, task; /* first and current element of the list of processes */
	__u64 fds;	   /* array of struct file * of the task */
};

/* Returns the listening TCP socket of a file, or 0. */
static __always_inline __u64 accel_file_listening_sk(__u64 address)
{
	struct file *file = accel_cast(struct file, address);
	__u64 inode = (__u64)accel_get(file, f_inode), super, socket, sk;

	super = (__u64)accel_get(accel_cast(struct inode, inode), i_sb);
	if (accel_get(accel_cast(struct super_block, super), s_magic) != ACCEL_SOCKFS)
		return 0;
	socket = (__u64)accel_get(file, private_data);
	sk = (__u64)accel_get(accel_cast(struct socket, socket), sk);
	if (!sk || accel_get(accel_sock(sk), sk_protocol) != ACCEL_TCP ||
	    accel_get(accel_sock(sk), __sk_common.skc_state) != BPF_TCP_LISTEN)
		return 0;
	return sk;
}

static long accel_fd_search(__u32 i, struct accel_search_state *s)
{
	struct accel_listener l = {};
	struct accel_port p = {};
	__u64 file = 0, sk, net;

	bpf_probe_read_kernel(&file, sizeof(file), (void *)(s->fds + i * 8ull));
	sk = file ? accel_file_listening_sk(file) : 0;
	if (!sk)
		return 0;
	net = (__u64)accel_get(accel_sock(sk), __sk_common.skc_net.net);
	p.netns = accel_get(accel_cast(struct net, net), net_cookie);
	p.port = accel_get(accel_sock(sk), __sk_common.skc_num);
	l.sk = sk;
	l.cookie = accel_cookie(sk);
	if (!bpf_map_lookup_elem(&members, &p.netns))
		return 0;
	l.file = accel_file_of(s->task);
	accel_listener_update(&p, &l); /* before the query: a verdict and a connection may follow at
					 * once */
	if (accel_executable_check(&l.file) == ACCEL_UNJUDGED)
		accel_executable_query(s->task, &l.file);
	return 0;
}

static long accel_task_search(__u32 i, struct accel_search_state *s)
{
	__u64 address = s->task, files, table;
	struct task_struct *task = accel_cast(struct task_struct, address);
	struct fdtable *fdt;
	__u32 n;

	files = (__u64)accel_get(task, mm) ? (__u64)accel_get(task, files) : 0;
	if (files) {
		table = (__u64)accel_get(accel_cast(struct files_struct, files), fdt);
		fdt = accel_cast(struct fdtable, table);
		n = accel_get(fdt, max_fds);
		s->fds = (__u64)accel_get(fdt, fd);
		bpf_loop(n < ACCEL_MAX_FDS ? n : ACCEL_MAX_FDS, accel_fd_search, s, 0);
	}
	address = (__u64)accel_get(task, tasks.next);
	s->task = address - bpf_core_field_offset(struct task_struct, tasks);
	return !address || s->task == s->first;
}

static long accel_member_search(void *map, __u64 *netns, struct accel_service *s, __u32 *found)
{
	if (!(s->flags & ACCEL_SEARCHED)) {
		__sync_fetch_and_or(&s->flags, ACCEL_SEARCHED);
		*found = 1;
	}
	return 0;
}

/* Searches listening programs in namespaces that were added since the last search. */
static __always_inline void accel_listeners_search(void)
{
	__u64 self = bpf_get_current_task(),
	      leader = (__u64)accel_get(accel_cast(struct task_struct, self), group_leader);
	struct accel_search_state s = { .first = leader, .task = leader };
	__u32 found = 0;

	bpf_for_each_map_elem(&members, accel_member_search, &found, 0);
	if (found)
		bpf_loop(ACCEL_MAX_TASKS, accel_task_search, &s, 0);
}

#endif
