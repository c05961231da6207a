/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Flags of send and recv calls, which the socket does not store: read from the registers with which
 * a thread entered the kernel. Threads in other calls, and 32-bit programs, count as without
 * flags. */
#ifndef ACCEL_CALL_H
#define ACCEL_CALL_H

#include "kernel.h"
#include "layout.h"

#define ACCEL_MSG_OOB	   0x1
#define ACCEL_MSG_WAITALL  0x100
#define ACCEL_MSG_ZEROCOPY 0x4000000
/* entries of a wait queue that are checked; more than one thread per socket is rare */
#define ACCEL_MAX_WAITERS  4

/* Returns the lower half of a pointer as a scalar, on which the verifier allows arithmetic. */
static __always_inline __u32 accel_ptr_low32(const void *p)
{
	__u64 low;

	asm volatile("r1 = %1; w1 = w1; %0 = r1" : "=r"(low) : "r"(p) : "r1");
	return low;
}

/* Returns the offset of struct pt_regs from the bottom of a kernel stack; the same for all
 * threads. */
static __always_inline __u32 accel_regs_offset(void)
{
	struct task_struct *task = bpf_get_current_task_btf();

	return accel_ptr_low32((void *)bpf_task_pt_regs(task)) - accel_ptr_low32(task->stack);
}

/* A system call; number: of this architecture. */
struct accel_call {
	__u32 number;
	__u32 third, fourth; /* arguments */
	__u32 x86;	     /* 0: arm64 */
};

static __always_inline int accel_call_read(__u64 address, struct accel_call *c)
{
	struct pt_regs *regs = accel_cast(struct pt_regs, address);

	c->x86 = bpf_core_field_exists(regs->orig_ax);
	if (c->x86) {
		c->number = accel_get(regs, orig_ax);
		c->third = accel_get(regs, dx);
		c->fourth = accel_get(regs, r10);
		return (accel_get_bits(regs, cs) & 0xffff) == 0x33; /* __USER_CS */
	}
	if (!bpf_core_field_exists(regs->syscallno))
		return 0;
	c->number = accel_get(regs, syscallno);
	c->third = accel_get(regs, regs[2]);
	c->fourth = accel_get(regs, regs[3]);
	return 1;
}

/* Returns the flags of the current send call. */
static __always_inline __u32 accel_send_flags(void)
{
	struct accel_call c;

	if (!accel_call_read((__u64)bpf_task_pt_regs(bpf_get_current_task_btf()), &c))
		return 0;
	/* sendmsg, sendto */
	return c.number == (c.x86 ? 46 : 211)	? c.third
	       : c.number == (c.x86 ? 44 : 206) ? c.fourth
						: 0;
}

struct accel_waiters {
	__u32 threads; /* that block on this socket, or are about to */
	/* of these: not in a call that sends (write, writev, sendfile, send..., splice) or in
	 * connect */
	__u32 receivers;
	__u32 flags; /* of their recv calls, ORed */
	__u32 zero;
	__u64 receiver;	 /* one of them */
};

static __always_inline void accel_waiter_add(struct accel_waiters *w, __u64 task, __u64 stack)
{
	struct accel_call c;
	__u32 n;

	w->threads++;
	if (!accel_call_read(stack + accel_regs_offset(), &c))
		return;
	n = c.number;
	if (c.x86 ? n == 1 || n == 20 || n == 40 || n == 44 || n == 46 || n == 275 || n == 307 ||
			    n == 42
		  : n == 64 || n == 66 || n == 71 || n == 206 || n == 211 || n == 76 || n == 269 ||
			    n == 203)
		return;
	w->receivers++;
	w->receiver = task;
	/* recvmsg, recvfrom */
	w->flags |= n == (c.x86 ? 47 : 212) ? c.third : n == (c.x86 ? 45 : 207) ? c.fourth : 0;
}

/* accel_waiters_find, into w. A global function, so that the verifier checks it once, independently
 * of the states of its callers. */
__noinline int accel_waiters_add(__u64 sk, struct accel_waiters *w)
{
	__u64 wq = (__u64)accel_get(accel_sock(sk), sk_wq),
	      head = wq + bpf_core_field_offset(struct socket_wq, wait.head);
	__u64 at = (__u64)accel_get(accel_cast(struct socket_wq, wq), wait.head.next), address,
	      stack, leader;
	struct wait_queue_entry *entry;
	struct task_struct *task;
	int i;

	if (!w)
		return 0;
	for (i = 0; i < ACCEL_MAX_WAITERS && wq && at && at != head; i++) {
		entry = accel_cast(struct wait_queue_entry,
				   at - bpf_core_field_offset(struct wait_queue_entry, entry));
		at = (__u64)accel_get(entry, entry.next);
		address = (__u64)accel_get(entry, private);
		task = accel_cast(struct task_struct, address);
		stack = address ? (__u64)accel_get(task, stack) : 0;
		leader = (__u64)accel_get(task, group_leader);
		if (!stack || stack & 4095 ||
		    (__u64)accel_get(accel_cast(struct task_struct, leader), group_leader) !=
			    leader)
			continue;
		accel_waiter_add(w, address, stack);
	}
	return 0;
}

/* Returns the threads that wait for this socket in a blocking call. Wait queue entries of epoll
 * have no task, and those of poll do not point to one, which shows in its stack and group
 * leader. */
static __always_inline struct accel_waiters accel_waiters_find(__u64 sk)
{
	struct accel_waiters w = {};

	accel_waiters_add(sk, &w);
	return w;
}

#endif
