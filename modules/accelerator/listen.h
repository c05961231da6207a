/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Programs that listened before their service was attached, when no event reported them: they are
 * found by their descriptors. All is read without locks, as in kernel.h; a process that ends
 * meanwhile may hide others, whose connections show who they are when they close. */
#ifndef ACCEL_LISTEN_H
#define ACCEL_LISTEN_H

#include "pair.h"

#define ACCEL_TASKS   (1 << 16)
#define ACCEL_FDS     (1 << 16)
#define ACCEL_SOCKFS  0x534f434b
#define ACCEL_TCP     6

struct accel_searching {
	__u64 first, task; /* of the list of processes */
	__u64 fds;	   /* of the task: array of struct file * */
};

/* The TCP socket of a file that listens, or 0. */
static __always_inline __u64 accel_listening_sk(__u64 address)
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

static long accel_search_fd(__u32 i, struct accel_searching *s)
{
	struct accel_listener l = {};
	struct accel_port p = {};
	__u64 file = 0, sk, net;

	bpf_probe_read_kernel(&file, sizeof(file), (void *)(s->fds + i * 8ull));
	sk = file ? accel_listening_sk(file) : 0;
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
	accel_note_listener(&p, &l); /* first: the answer may come at once, and then a connection */
	if (accel_examine_calls(&l.file) == ACCEL_UNJUDGED)
		accel_ask_about(s->task, &l.file);
	return 0;
}

static long accel_search_task(__u32 i, struct accel_searching *s)
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
		bpf_loop(n < ACCEL_FDS ? n : ACCEL_FDS, accel_search_fd, s, 0);
	}
	address = (__u64)accel_get(task, tasks.next);
	s->task = address - bpf_core_field_offset(struct task_struct, tasks);
	return !address || s->task == s->first;
}

static long accel_search_member(void *map, __u64 *netns, struct accel_service *s, __u32 *found)
{
	if (!(s->flags & ACCEL_SEARCHED)) {
		__sync_fetch_and_or(&s->flags, ACCEL_SEARCHED);
		*found = 1;
	}
	return 0;
}

/* Looks for programs that listen in namespaces that have come since the last time. */
static __always_inline void accel_search(void)
{
	__u64 self = bpf_get_current_task(),
	      leader = (__u64)accel_get(accel_cast(struct task_struct, self), group_leader);
	struct accel_searching s = {.first = leader, .task = leader};
	__u32 found = 0;

	bpf_for_each_map_elem(&members, accel_search_member, &found, 0);
	if (found)
		bpf_loop(ACCEL_TASKS, accel_search_task, &s, 0);
}

#endif
