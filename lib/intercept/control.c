/* SPDX-License-Identifier: Apache-2.0 */
#include "control.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "receiver.h"

void controls_unmap(struct controls *c)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	if (!c->producer)
		return;
	munmap((void *)c->consumer, page);
	munmap(c->producer, page + 2 * c->size);
	c->producer = NULL;
}

/* has_valid_messages reports whether the ring holds only messages: the previous program that had
 * the class may have written anything to it. */
static bool has_valid_messages(const struct controls *c)
{
	const uint32_t want[2] = { sizeof(struct icpt_control), 0 };
	unsigned long at = __atomic_load_n(c->consumer, __ATOMIC_ACQUIRE), end = *c->producer;

	if (at % 8 || end - at > c->size)
		return false;
	for (; at != end && end - at <= c->size; at += sizeof(want) + sizeof(struct icpt_control))
		if (memcmp(c->data + (at & (c->size - 1)), want, sizeof(want)))
			return false;
	return at == end;
}

void controls_map(struct controls *c, int fd)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	void *consumer = mmap(NULL, page, PROT_READ, MAP_SHARED, fd, 0), *producer;

	*c = (struct controls){ .size = ICPT_CONTROLS > page ? ICPT_CONTROLS : page };
	if (consumer == MAP_FAILED)
		return;
	producer =
		mmap(NULL, page + 2 * c->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)page);
	if (producer == MAP_FAILED) {
		munmap(consumer, page);
		return;
	}
	c->consumer = consumer;
	c->producer = producer;
	c->data = (uint8_t *)producer + page;
	if (!has_valid_messages(c))
		__atomic_store_n(c->producer, __atomic_load_n(c->consumer, __ATOMIC_ACQUIRE),
				 __ATOMIC_RELEASE);
}

static int send_control(struct kerb_intercept *k, const struct icpt_control *m)
{
	struct controls *c = &k->controls;
	uint32_t head[2] = { sizeof(*m), 0 };
	unsigned long at, room;

	if (!c->producer)
		return fail(ENOTSUP, "control messages need Linux 6.1, and a class of the module");
	at = *c->producer;
	room = c->size - (at - __atomic_load_n(c->consumer, __ATOMIC_ACQUIRE));
	if (room < sizeof(head) + sizeof(*m))
		return fail(EAGAIN,
			    "no room for a control message: they are taken when packets come");
	memcpy(c->data + (at & (c->size - 1)), head, sizeof(head));
	memcpy(c->data + (at & (c->size - 1)) + sizeof(head), m, sizeof(*m));
	__atomic_store_n(c->producer, at + sizeof(head) + sizeof(*m), __ATOMIC_RELEASE);
	__atomic_store_n(&k->state->doorbell, 1, __ATOMIC_SEQ_CST);
	return 0;
}

static int set(struct kerb_intercept *k, enum icpt_op op, uint32_t index, uint64_t value)
{
	return send_control(k, &(struct icpt_control){ .op = op, .index = index, .value = value });
}

int kerb_intercept_start(struct kerb_intercept *k) { return set(k, ICPT_OP_START, 0, 0); }
int kerb_intercept_stop(struct kerb_intercept *k) { return set(k, ICPT_OP_STOP, 0, 0); }
int kerb_intercept_action(struct kerb_intercept *k, enum kerb_action action)
{
	return set(k, ICPT_OP_ACTION, 0, action);
}
int kerb_intercept_priority(struct kerb_intercept *k, uint32_t priority)
{
	return set(k, ICPT_OP_PRIORITY, 0, priority);
}
int kerb_intercept_max_bytes(struct kerb_intercept *k, uint32_t bytes)
{
	return set(k, ICPT_OP_MAX_BYTES, 0, bytes);
}
int kerb_intercept_deadline(struct kerb_intercept *k, uint64_t ns)
{
	return set(k, ICPT_OP_DEADLINE, 0, ns);
}

int kerb_intercept_ports(struct kerb_intercept *k, uint32_t index, uint16_t first, uint16_t last)
{
	return set(k, ICPT_OP_PORTS, index, (uint64_t)first << 16 | last);
}

int kerb_intercept_payload(struct kerb_intercept *k, uint32_t index, uint16_t offset,
			   const uint8_t *bytes, const uint8_t *mask, size_t n)
{
	struct icpt_control c = { .op = ICPT_OP_PAYLOAD,
				  .index = index,
				  .value = (uint64_t)offset << 16 | n };

	if (n > sizeof(c.bytes))
		return fail(EINVAL, "%zu bytes of payload: a condition has at most %zu", n,
			    sizeof(c.bytes));
	memcpy(c.bytes, bytes, n);
	memcpy(c.mask, mask, n);
	return send_control(k, &c);
}
