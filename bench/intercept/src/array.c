// SPDX-License-Identifier: Apache-2.0
/* The published receiver: it polls the slots of a memory-mapped BPF array (descriptor 3), which an
 * XDP program fills in turn. Polling needs no system call. The number in a slot that was
 * overwritten before it was read shows how many packets were lost. */
#define _GNU_SOURCE
#include "meter.h"

enum { MAP_FD = 3 };

static const struct array_slot *slots;

/* wait_slot waits for the packet after the one with a number and returns its slot. */
static const struct array_slot *wait_slot(uint64_t number)
{
	const struct array_slot *s = &slots[(number + 1) % ARRAY_SLOTS];

	while (__atomic_load_n(&s->number, __ATOMIC_ACQUIRE) <= number)
		;
	return s;
}

static void receive_slots(void)
{
	uint64_t number = 0;
	struct message m;

	for (int i = 0; i < ARRAY_SLOTS; i++)
		if (slots[i].number > number)
			number = slots[i].number;
	print_ready();
	for (;;) {
		const struct array_slot *s = wait_slot(number);
		uint64_t have = __atomic_load_n(&s->number, __ATOMIC_ACQUIRE);

		memcpy(&m, s->data + HEADERS, sizeof(m));
		if (__atomic_load_n(&s->number, __ATOMIC_SEQ_CST) != have)
			continue; /* overwritten while it was read */
		meter.reported += have - number - 1;
		number = have;
		record_message(&m, now_ns());
	}
}

/* array spin other|eager|fifo CPU - */
int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	setup_receiver(argv[2], argv[3]);
	slots = mmap(NULL, sizeof(*slots) * ARRAY_SLOTS, PROT_READ, MAP_SHARED | MAP_POPULATE,
		     MAP_FD, 0);
	if (slots == MAP_FAILED)
		die("map");
	receive_slots();
}
