// SPDX-License-Identifier: Apache-2.0
/* The original's receiver: polls the slots of an array (descriptor 3) that a program of the kernel
 * fills in turn, mapped, so that a look costs no system call. A slot that was filled again before
 * it was read reports how many packets were lost. */
#define _GNU_SOURCE
#include "meter.h"

enum { MAP_FD = 3 };

static const struct array_slot *slots;

/* next returns the slot of the next packet after the one with a number. */
static const struct array_slot *next(uint64_t number)
{
	const struct array_slot *s = &slots[(number + 1) % ARRAY_SLOTS];

	while (__atomic_load_n(&s->number, __ATOMIC_ACQUIRE) <= number)
		;
	return s;
}

static void receive(void)
{
	uint64_t number = 0;
	struct message m;

	for (int i = 0; i < ARRAY_SLOTS; i++)
		if (slots[i].number > number)
			number = slots[i].number;
	ready();
	for (;;) {
		const struct array_slot *s = next(number);
		uint64_t have = __atomic_load_n(&s->number, __ATOMIC_ACQUIRE);

		memcpy(&m, s->data + HEADERS, sizeof(m));
		if (__atomic_load_n(&s->number, __ATOMIC_SEQ_CST) != have)
			continue; /* filled again while it was read */
		meter.told += have - number - 1;
		number = have;
		account(&m, now());
	}
}

/* array spin other|eager|fifo CPU - */
int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	settle(argv[2], argv[3]);
	slots = mmap(NULL, sizeof(*slots) * ARRAY_SLOTS, PROT_READ, MAP_SHARED | MAP_POPULATE,
		     MAP_FD, 0);
	if (slots == MAP_FAILED)
		die("map");
	receive();
}
