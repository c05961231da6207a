/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Work space in per-CPU maps belongs to one packet at a time, for programs run to their end with
 * softirqs off. On a kernel with PREEMPT_RT that is a lock of the CPU, which Linux 6.18 and newer
 * can be built without (PREEMPT_RT_NEEDS_BH_LOCK): a packet may then interrupt another one on the
 * same CPU. A module with work space encloses its use:
 *
 *	if (!kerb_scratch_enter())
 *		return kerb_drop(pkt, KERB_DROP_NO_MEMORY);	or KERB_NEXT, if that does no harm
 *	...
 *	kerb_scratch_leave();
 *
 * On all other kernels the verifier removes this. Those with PREEMPT_RT refuse BPF timers, too:
 * code that uses one stands behind !kerb_preemptible. */
#ifndef KERB_SCRATCH_H
#define KERB_SCRATCH_H

#include <kerb/module.h>

KERB_CONFIG(_Bool, kerb_preemptible, 0); /* set by the agent on kernels with PREEMPT_RT */

/* Number of packets of this CPU that use or try to use the work space. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} kerb_users SEC(".maps");

/* Returns 0 if another packet uses the work space. A packet that finds only itself may use it: one
 * that interrupts between the addition and the read adds itself as well, and has either left by
 * then or is seen. Since everything is on one CPU, an addition without a return value suffices. */
static __always_inline int kerb_scratch_enter(void)
{
	__u32 zero = 0, *users;

	if (!kerb_preemptible)
		return 1;
	users = bpf_map_lookup_elem(&kerb_users, &zero);
	if (!users)
		return 0;
	__sync_fetch_and_add(users, 1);
	if (*(volatile __u32 *)users == 1)
		return 1;
	__sync_fetch_and_add(users, -1);
	return 0;
}

static __always_inline void kerb_scratch_leave(void)
{
	__u32 zero = 0, *users;

	if (!kerb_preemptible)
		return;
	users = bpf_map_lookup_elem(&kerb_users, &zero);
	if (users)
		__sync_fetch_and_add(users, -1);
}

#endif
