/* SPDX-License-Identifier: Apache-2.0 */
/* What plant and controller tell each other, in host byte order. */
#pragma once

#include <stdint.h>

#define PORT 5005 /* of the controller */

struct state { /* plant to controller: "CTRL" is what the class matches */
	char kind[4];
	uint32_t step;
	double angle, speed; /* rad, rad/s; 0 is upright */
};

struct force { /* the answer: angular acceleration of the pivot, rad/s^2 */
	uint32_t step, zero;
	double push;
};
