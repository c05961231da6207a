/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Sends each request back unchanged, for measurements. */
#ifndef RSP_ECHO_H
#define RSP_ECHO_H

#include "../../respond.h"

static __always_inline int echo_check(struct rsp_request *r)
{
	r->req.reply_len = r->req.len;
	r->same = 1;
	return RSP_REPLY;
}

static __always_inline int echo_answer(struct rsp_request *r)
{
	return 0;
}

#endif
