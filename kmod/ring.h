/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The ring between the kernel and a program, with the layout of a BPF ring buffer
 * (kernel/bpf/ringbuf.c), so that one library reads both. */
#pragma once

#include <linux/bpf.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/version.h>
#include <linux/vmalloc.h>
#include <linux/wait.h>

#include "../modules/intercept/record.h"

struct ring {
	spinlock_t lock; /* serializes producers on all CPUs */
	wait_queue_head_t wait;
	struct page **pages;
	unsigned long n_data; /* number of pages of data */
	u64 mask;
	/* Mapped into the program, consumer and state writable: their contents are untrusted. */
	u64 *consumer;
	u64 *producer;
	u8 *data;
	struct icpt_state *state;
	u64 written; /* trusted copy of *producer */
};

/* is_repeat reports whether a page is the second mapping of a data page: data is mapped twice, so
 * that no record wraps. */
static bool is_repeat(const struct ring *r, unsigned long page)
{
	return page >= 2 + r->n_data && page < 2 + 2 * r->n_data;
}

static unsigned long ring_pages(const struct ring *r) { return 3 + 2 * r->n_data; }

static void ring_free(struct ring *r)
{
	vunmap(r->consumer);
	for (unsigned long i = 0; i < ring_pages(r); i++)
		if (r->pages[i] && !is_repeat(r, i))
			__free_page(r->pages[i]);
	kvfree(r->pages);
	r->consumer = NULL;
}

static int ring_map(struct ring *r)
{
	for (unsigned long i = 0; i < ring_pages(r); i++) {
		r->pages[i] = is_repeat(r, i) ? r->pages[i - r->n_data]
					      : alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO);
		if (!r->pages[i])
			return -ENOMEM;
	}
	r->consumer = vmap(r->pages, ring_pages(r), VM_MAP | VM_USERMAP, PAGE_KERNEL);
	if (!r->consumer)
		return -ENOMEM;
	r->producer = (void *)r->consumer + PAGE_SIZE;
	r->data = (void *)r->consumer + 2 * PAGE_SIZE;
	r->state = (void *)r->data + 2 * r->n_data * PAGE_SIZE;
	return 0;
}

static int ring_init(struct ring *r, u32 size)
{
	int err;

	if (size < PAGE_SIZE || !is_power_of_2(size) || size > SZ_64M)
		return -EINVAL;
	spin_lock_init(&r->lock);
	init_waitqueue_head(&r->wait);
	r->mask = size - 1;
	r->n_data = size / PAGE_SIZE;
	r->pages = kvcalloc(ring_pages(r), sizeof(*r->pages), GFP_KERNEL_ACCOUNT);
	if (!r->pages)
		return -ENOMEM;
	err = ring_map(r);
	if (err)
		ring_free(r);
	return err;
}

static u64 ring_position(const struct ring *r) { return smp_load_acquire(r->consumer); }

/* ring_reserve returns the place of a record of size bytes, NULL if it does not fit. The caller
 * holds the lock until ring_commit. The consumer position is untrusted: it may be ahead of the
 * producer, or so far behind that the ring is more than full. Both are handled as a full ring, as
 * is a record longer than the ring. */
static void *ring_reserve(struct ring *r, u32 size)
{
	u64 total = round_up((u64)size + BPF_RINGBUF_HDR_SZ, 8),
	    used = r->written - ring_position(r);

	if (total > r->mask || used > r->mask || used + total > r->mask)
		return NULL;
	return r->data + (r->written & r->mask) + BPF_RINGBUF_HDR_SZ;
}

/* ring_commit publishes the record of ring_reserve, and wakes the program if it has set waiting. */
static void ring_commit(struct ring *r, u32 size)
{
	u32 *header = (void *)(r->data + (r->written & r->mask));

	header[0] = size;
	header[1] = 0;
	r->written += round_up((u64)size + BPF_RINGBUF_HDR_SZ, 8);
	smp_store_release(r->producer, r->written);
	smp_mb(); /* pairs with the program, which sets waiting, then checks the ring again */
	if (READ_ONCE(r->state->waiting)) {
		WRITE_ONCE(r->state->waiting, 0);
		wake_up_interruptible_poll(&r->wait, EPOLLIN | EPOLLRDNORM);
	}
}

static bool ring_has_data(const struct ring *r)
{
	return ring_position(r) != smp_load_acquire(r->producer);
}

/* Only the pages of the consumer position and of the state may be mapped writable. */
static int ring_mmap(struct ring *r, struct vm_area_struct *vma)
{
	unsigned long state = ((void *)r->state - (void *)r->consumer) / PAGE_SIZE;

	if (vma->vm_flags & VM_WRITE) {
		if ((vma->vm_pgoff && vma->vm_pgoff != state) ||
		    vma->vm_end - vma->vm_start != PAGE_SIZE)
			return -EPERM;
	} else {
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
		vm_flags_clear(vma, VM_MAYWRITE);
#else
		vma->vm_flags &= ~VM_MAYWRITE;
#endif
	}
	return remap_vmalloc_range(vma, r->consumer, vma->vm_pgoff);
}
