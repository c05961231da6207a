/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Constants of TCP and ICMP headers. linux/tcp.h has bit fields instead of flags, and linux/icmp.h
 * and linux/icmpv6.h use different names for the two versions of IP. */
#ifndef KERB_L4_H
#define KERB_L4_H

#define KERB_TCP_FIN 0x01
#define KERB_TCP_SYN 0x02
#define KERB_TCP_RST 0x04
#define KERB_TCP_ACK 0x10
#define KERB_TCP_URG 0x20

#define KERB_ICMP_ECHO_REPLY	  0
#define KERB_ICMP_UNREACHABLE	  3
#define KERB_ICMP_ECHO		  8
#define KERB_ICMP_TIME		  11
#define KERB_ICMP_PARAMETER	  12
#define KERB_ICMP_TIMESTAMP	  13
#define KERB_ICMP_TIMESTAMP_REPLY 14
#define KERB_ICMP6_UNREACHABLE	  1
#define KERB_ICMP6_TOO_BIG	  2
#define KERB_ICMP6_PARAMETER	  4
#define KERB_ICMP6_ECHO		  128 /* the first type that is not an error */
#define KERB_ICMP6_ECHO_REPLY	  129
#define KERB_ICMP6_REDIRECT	  137

#endif
