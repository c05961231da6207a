// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)

//go:build ignore

/* The proxy: packets to a virtual address go to an instance of the service that it stands for, and come back from there as
 * if from the virtual address. */
#include <kerb/module.h>
#include "maps.h"

KERB_CONFIG(_Bool, short_path, 1); /* hand packets straight to the other service; else the bridge or the stack carries them */

KERB_EGRESS(pkt)
{
	return KERB_NEXT;
}

KERB_INGRESS(pkt)
{
	return KERB_NEXT;
}

KERB_LICENSE("Dual BSD/GPL");
