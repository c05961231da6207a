// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The classifier's engine with nothing around it. */
#include "../../modules/classifier/model/testdata/engine.bpf.c"
