/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics in the page of a class: counters, the histogram of delays, and the log of late
 * packets. */
#define _GNU_SOURCE
#include <sched.h>

#include <kerb/buckets.h>

#include "receiver.h"

/* record_late logs a late packet with the state of the system; queued: packets of its batch behind
 * it. Once per batch, as it takes microseconds. */
static void record_late(struct kerb_intercept *k, const struct kerb_packet *p, int queued)
{
	const struct icpt_record *r =
		xsk_owns(&k->xsk, p->frame) ? NULL : (const struct icpt_record *)p->frame - 1;
	struct icpt_late *l = &k->state->last[k->state->lates % ICPT_LATES];
	struct sched_sample now = thread_sample(k->schedstat);
	unsigned cpu = 0;

	getcpu(&cpu, NULL);
	*l = (struct icpt_late){ .seq = p->seq,
				 .t1 = p->sent,
				 .t2 = p->received,
				 .waited = k->before.waited ? now.waited - k->before.waited : 0,
				 .cpu2 = cpu,
				 .queued = (uint32_t)queued,
				 .voluntary = (uint32_t)(now.voluntary - k->before.voluntary),
				 .involuntary =
					 (uint32_t)(now.involuntary - k->before.involuntary) };
	if (r) {
		l->cpu1 = r->cpu;
		l->pid1 = r->pid;
		thread_name(r->pid, l->comm1, sizeof(l->comm1));
	}
	k->before = now;
	__atomic_store_n(&k->state->lates, k->state->lates + 1, __ATOMIC_RELEASE);
}

void record_packets(struct kerb_intercept *k, const struct kerb_packet *packets, int n)
{
	struct icpt_state *s = k->state;
	uint64_t deadline = s->deadline;
	bool noted = false;

	for (int i = 0; i < n; i++) {
		const struct kerb_packet *p = &packets[i];
		uint64_t delay = p->received > p->sent ? p->received - p->sent : 0;

		wait_arrived(&k->wait, p->sent);
		s->delay[kerb_histogram_bucket(delay, ICPT_BUCKETS)]++;
		if (delay > s->longest)
			s->longest = delay;
		s->missed += p->lost;
		if (!deadline || delay <= deadline)
			continue;
		s->late++;
		if (!noted)
			record_late(k, p, n - i - 1);
		noted = true;
	}
	s->received += (uint64_t)n;
}
