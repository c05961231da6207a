/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Values of TCP and ICMP headers. linux/tcp.h has bit fields instead of flags, linux/icmp.h and
 * linux/icmpv6.h have other names for the two versions of IP. */
#ifndef KERB_L4_H
#define KERB_L4_H

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10
#define TCP_URG 0x20

#define ICMP4_ECHO_REPLY      0
#define ICMP4_UNREACHABLE     3
#define ICMP4_ECHO_REQUEST    8
#define ICMP4_TIME	      11
#define ICMP4_PARAMETER	      12
#define ICMP4_TIMESTAMP	      13
#define ICMP4_TIMESTAMP_REPLY 14
#define ICMP6_UNREACHABLE     1
#define ICMP6_TOO_BIG	      2
#define ICMP6_PARAMETER	      4
#define ICMP6_ECHO_REQUEST    128 /* the first that is no error */
#define ICMP6_ECHO_REPLY      129
#define ICMP6_REDIRECT	      137

#endif
