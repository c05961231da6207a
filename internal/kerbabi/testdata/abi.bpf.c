// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Carries the contract's types, and its macros as enumerators, into BTF. */
#define KERB_FIXED_LAYOUT
#include <kerb/types.h>
#include <kerb/parse.h>
#include <kerb/event.h>

enum macros {
	flag_frag_first = KERB_F_FRAG_FIRST,
	flag_frag_later = KERB_F_FRAG_LATER,
	flag_options = KERB_F_OPTIONS,
	flag_ext = KERB_F_EXT,
	flag_l4 = KERB_F_L4,
	to_deferred = KERB_TO_DEFERRED,
	max_ext = KERB_MAX_EXT,
	max_hdrs = KERB_MAX_HDRS,
	vlan_depth = KERB_VLAN_DEPTH,
};

enum kerb_verdict verdict;
enum kerb_parse outcome;
enum kerb_drop_reason reason;
enum kerb_event_count event_count;
enum macros macros;
struct kerb_pkt packet;
