/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Flags of send and recv calls, which the socket does not know: taken from the registers that threads entered the kernel with.
 * Only what is certain counts; a thread in another call, or of a 32-bit program, has no flags. */
#ifndef ACCEL_CALL_H
#define ACCEL_CALL_H

#include "kernel.h"

#define ACCEL_MSG_OOB	   0x1
#define ACCEL_MSG_WAITALL  0x100
#define ACCEL_MSG_ZEROCOPY 0x4000000
#define ACCEL_WAITERS	  4 /* entries of a wait queue that are looked at; more than one thread at one socket is rare */

/* The lower half of a pointer, as a number: the verifier lets nobody calculate with more. */
static __always_inline __u32 accel_low(const void *p)
{
	__u64 low;

	asm volatile("r1 = %1; w1 = w1; %0 = r1" : "=r"(low) : "r"(p) : "r1");
	return low;
}

/* Where registers lie above the lower end of a kernel stack; the same for all threads of this machine. */
static __always_inline __u32 accel_regs_offset(void)
{
	struct task_struct *task = bpf_get_current_task_btf();

	return accel_low((void *)bpf_task_pt_regs(task)) - accel_low(task->stack);
}

/* Flags of the call with this number that takes them as its third or fourth argument. */
static __always_inline __u32 accel_flags(__u64 address, int x86_third, int x86_fourth, int arm_third, int arm_fourth)
{
	struct pt_regs *regs = accel_cast(struct pt_regs, address);
	__u64 call;

	if (bpf_core_field_exists(regs->orig_ax)) {
		if ((accel_get_bits(regs, cs) & 0xffff) != 0x33) /* __USER_CS */
			return 0;
		call = accel_get(regs, orig_ax);
		return call == x86_third ? accel_get(regs, dx) : call == x86_fourth ? accel_get(regs, r10) : 0;
	}
	if (!bpf_core_field_exists(regs->syscallno))
		return 0;
	call = accel_get(regs, syscallno);
	return call == arm_third ? accel_get(regs, regs[2]) : call == arm_fourth ? accel_get(regs, regs[3]) : 0;
}

/* sendmsg and sendto */
static __always_inline __u32 accel_send_flags(void)
{
	return accel_flags((__u64)bpf_task_pt_regs(bpf_get_current_task_btf()), 46, 44, 211, 206);
}

struct accel_waiting {
	__u32 threads; /* blocked in recv, or about to be */
	__u32 flags;   /* of their calls */
	__u64 task;    /* one of them */
};

/* Who waits for this socket by a blocking call. Entries of epoll have no task, those of poll no stack where we look for it. */
static __always_inline struct accel_waiting accel_waiting(__u64 sk)
{
	__u64 wq = (__u64)accel_get(accel_sock(sk), sk_wq), head = wq + bpf_core_field_offset(struct socket_wq, wait.head);
	__u64 at = (__u64)accel_get(accel_cast(struct socket_wq, wq), wait.head.next), address, stack, leader;
	struct accel_waiting w = {};
	struct wait_queue_entry *entry;
	struct task_struct *task;
	int i;

	for (i = 0; i < ACCEL_WAITERS && wq && at && at != head; i++) {
		entry = accel_cast(struct wait_queue_entry, at - bpf_core_field_offset(struct wait_queue_entry, entry));
		at = (__u64)accel_get(entry, entry.next);
		address = (__u64)accel_get(entry, private);
		task = accel_cast(struct task_struct, address);
		stack = address ? (__u64)accel_get(task, stack) : 0;
		leader = (__u64)accel_get(task, group_leader);
		if (!stack || stack & 4095 || (__u64)accel_get(accel_cast(struct task_struct, leader), group_leader) != leader)
			continue;
		w.threads++;
		w.task = address;
		w.flags |= accel_flags(stack + accel_regs_offset(), 47, 45, 212, 207);
	}
	return w;
}

#endif
