/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "source.h"

#include <errno.h>
#include <linux/bpf.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "connection.h"
#include "record.h"

/* record_length returns the distance to the next record; head: the first word of this one. */
static unsigned long record_length(uint32_t head)
{
	uint32_t size = head & ~(BPF_RINGBUF_BUSY_BIT | BPF_RINGBUF_DISCARD_BIT);

	return (BPF_RINGBUF_HDR_SZ + size + 7) & ~7UL;
}

/* ring_first_record returns the position of the first record. The previous consumer may have left a
 * position that is not the start of a record: then it is the end of the pending records. */
static unsigned long ring_first_record(const struct ring *r)
{
	unsigned long from = __atomic_load_n(r->consumer, __ATOMIC_ACQUIRE),
		      end = __atomic_load_n(r->producer, __ATOMIC_ACQUIRE), at = from;

	if (at % 8)
		return end;
	while (end - at - 1 < r->mask + 1) {
		unsigned long step =
			record_length(*(const volatile uint32_t *)(r->data + (at & r->mask)));

		if (step < 16) /* the smallest record only wakes */
			return end;
		at += step;
	}
	return at == end ? from : end;
}

int ring_map(struct ring *r, int fd, size_t size)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	if (size < page || size & (size - 1))
		return fail(EPROTO,
			    "a ring of %zu bytes: Kerb's and this library's versions differ", size);
	*r = (struct ring){
		.fd = fd, .mask = size - 1, .lost = UINT64_MAX, .length = page + 2 * size
	};
	r->consumer = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (r->consumer == MAP_FAILED)
		return fail(errno, "map a ring: %s", strerror(errno));
	r->producer = mmap(NULL, r->length, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, (off_t)page);
	if (r->producer == MAP_FAILED) {
		int code = errno;

		munmap(r->consumer, page);
		return fail(code, "map a ring of %zu bytes: %s", size, strerror(code));
	}
	r->data = (const uint8_t *)r->producer + page;
	r->next = ring_first_record(r);
	ring_release(r);
	return 0;
}

void ring_unmap(struct ring *r)
{
	munmap((void *)r->consumer, (size_t)sysconf(_SC_PAGESIZE));
	munmap((void *)r->producer, r->length);
	close(r->fd);
}

static struct kerb_packet packet_of(struct ring *r, const struct icpt_record *e)
{
	struct kerb_packet p = {
		.frame = (const uint8_t *)(e + 1),
		.len = e->len,
		.caplen = e->caplen,
		.l3 = e->l3,
		.l4 = e->l4,
		.payload = e->payload,
		.vlan = (uint16_t)(e->flags >> ICPT_TCI_SHIFT),
		.flags = e->flags & 0xffff,
		.ifindex = e->ifindex,
		.seq = e->seq,
		.sent = e->time,
	};

	if (r->lost != UINT64_MAX && e->lost > r->lost)
		p.lost = e->lost - r->lost;
	/* records of several CPUs may be out of order */
	if (r->lost == UINT64_MAX || e->lost > r->lost)
		r->lost = e->lost;
	return p;
}

int ring_fetch(struct ring *r, struct kerb_packet *packets, int max)
{
	unsigned long end = __atomic_load_n(r->producer, __ATOMIC_ACQUIRE);
	int n = 0;

	while (r->next != end && n < max) {
		const uint8_t *at = r->data + (r->next & r->mask);
		uint32_t head = __atomic_load_n((const uint32_t *)at, __ATOMIC_ACQUIRE);
		uint32_t size = head & ~(BPF_RINGBUF_BUSY_BIT | BPF_RINGBUF_DISCARD_BIT);

		if (head & BPF_RINGBUF_BUSY_BIT)
			break;
		if (!(head & BPF_RINGBUF_DISCARD_BIT) && size >= sizeof(struct icpt_record))
			packets[n++] = packet_of(r, (const void *)(at + BPF_RINGBUF_HDR_SZ));
		r->next += record_length(head);
	}
	return n;
}
