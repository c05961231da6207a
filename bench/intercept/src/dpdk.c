// SPDX-License-Identifier: Apache-2.0
/* The controller with DPDK, without huge pages. Its driver, net_af_xdp or net_af_packet, polls an
 * interface that remains under Linux. One thread receives the messages and sends the instructions
 * in their frames. It never sleeps. */
#define _GNU_SOURCE
#include <libgen.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_ip.h>
#include <rte_mbuf.h>
#include <rte_udp.h>

#include "controller.h"
#include "udp.h"

enum { PORT_ID, DESCRIPTORS = 4096, BUFFERS = 8191, CACHE = 256, BURST = 32, TEXT = 512 };

struct frame {
	struct rte_ether_hdr eth;
	struct rte_ipv4_hdr ip;
	struct rte_udp_hdr udp_open;
	struct message message;
} __attribute__((packed));

static int port;
static volatile sig_atomic_t ended;
static int64_t first, last; /* times of the first and the last message */

static void die_dpdk(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, rte_strerror(rte_errno));
	exit(1);
}

static void stop(int signal)
{
	(void)signal;
	ended = 1;
}

/* start_eal pins the calling thread. The runtime files of DPDK are next to the program. */
static void start_eal(char **argv)
{
	char core[TEXT], device[TEXT];
	char *args[] = { "dpdk",     "--no-huge",      "--no-shconf",	   "-m", "48",
			 "--no-pci", "--no-telemetry", "--lcores",	   core, "--vdev",
			 device,     "--iova-mode=va", "--log-level=error" };

	snprintf(core, sizeof(core), "0@%s", argv[2]);
	snprintf(device, sizeof(device), "%s0,%s", argv[1], argv[4]);
	setenv("RUNTIME_DIRECTORY", dirname(strdup(argv[0])), 1);
	if (rte_eal_init(sizeof(args) / sizeof(*args), args) < 0)
		die_dpdk("rte_eal_init");
	if (rte_eth_dev_count_avail() != 1) {
		fprintf(stderr, "no device %s\n", device);
		exit(1);
	}
}

static void start_port(void)
{
	struct rte_eth_conf defaults = { 0 };
	struct rte_mempool *pool = rte_pktmbuf_pool_create(
		"messages", BUFFERS, CACHE, 0, RTE_MBUF_DEFAULT_BUF_SIZE, SOCKET_ID_ANY);

	if (!pool || rte_eth_dev_configure(PORT_ID, 1, 1, &defaults) ||
	    rte_eth_rx_queue_setup(PORT_ID, 0, DESCRIPTORS, SOCKET_ID_ANY, NULL, pool) ||
	    rte_eth_tx_queue_setup(PORT_ID, 0, DESCRIPTORS, SOCKET_ID_ANY, NULL) ||
	    rte_eth_dev_start(PORT_ID))
		die_dpdk("start the driver");
}

/* parse_message returns NULL for other frames: net_af_packet receives all of the interface. */
static const struct message *parse_message(struct rte_mbuf *b)
{
	const struct frame *f = rte_pktmbuf_mtod(b, const struct frame *);

	if (rte_pktmbuf_data_len(b) < sizeof(*f) ||
	    f->eth.ether_type != rte_cpu_to_be_16(RTE_ETHER_TYPE_IPV4) ||
	    f->ip.version_ihl != RTE_IPV4_VHL_DEF || f->ip.next_proto_id != IPPROTO_UDP ||
	    f->udp_open.dst_port != rte_cpu_to_be_16(port))
		return NULL;
	return (const void *)((const uint8_t *)f + offsetof(struct frame, message));
}

/* make_instruction rewrites the frame of a message into that of an instruction, without data. */
static void make_instruction(struct rte_mbuf *b)
{
	struct frame *f = rte_pktmbuf_mtod(b, struct frame *);
	const struct frame was = *f;
	uint16_t ip_len = sizeof(*f) - sizeof(f->eth), udp_len = ip_len - sizeof(f->ip);

	f->eth.dst_addr = was.eth.src_addr;
	f->eth.src_addr = was.eth.dst_addr;
	f->ip.dst_addr = was.ip.src_addr;
	f->ip.src_addr = was.ip.dst_addr;
	f->ip.total_length = rte_cpu_to_be_16(ip_len);
	f->ip.hdr_checksum = 0;
	f->ip.hdr_checksum = rte_ipv4_cksum((const void *)((uint8_t *)f + sizeof(f->eth)));
	f->udp_open.dst_port = was.udp_open.src_port;
	f->udp_open.src_port = was.udp_open.dst_port;
	f->udp_open.dgram_len = rte_cpu_to_be_16(udp_len);
	f->udp_open.dgram_cksum = 0;
	rte_pktmbuf_data_len(b) = rte_pktmbuf_pkt_len(b) = sizeof(*f);
}

/* poll_burst receives a burst and sends the instructions for it as one burst. */
static void poll_burst(void)
{
	struct rte_mbuf *in[BURST], *out[BURST];
	uint16_t n = rte_eth_rx_burst(PORT_ID, 0, in, BURST), instructions = 0, sent = 0;

	for (uint16_t i = 0; i < n; i++) {
		const struct message *m = parse_message(in[i]);

		if (m) {
			last = now_ns();
			first = first ? first : last;
		}
		if (m && record_message(m)) {
			make_instruction(in[i]);
			out[instructions++] = in[i];
		} else {
			rte_pktmbuf_free(in[i]);
		}
	}
	if (instructions)
		sent = rte_eth_tx_burst(PORT_ID, 0, out, instructions);
	for (; sent < instructions; sent++)
		rte_pktmbuf_free(out[sent]); /* an instruction that is not sent is a loss */
}

/* dpdk net_af_xdp|net_af_packet CPU PORT DRIVER-OPTIONS */
int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	port = atoi(argv[3]);
	udp_open_send_only(port); /* with net_af_packet, the kernel receives the messages, too */
	signal(SIGTERM, stop);
	start_eal(argv);
	start_port();
	if (mlockall(MCL_CURRENT | MCL_FUTURE))
		die("lock memory");
	/* The kernel stops a SCHED_FIFO thread that never sleeps for 50 ms of a second. */
	setsid();
	raise_priority();

	double used = process_cpu_seconds();
	int64_t begin = now_ns();

	print_ready();
	while (!ended)
		poll_burst();
	/* It also polls before and after the messages. That time is not theirs. */
	double share = (process_cpu_seconds() - used) * 1e9 / (double)(now_ns() - begin);

	rte_eth_dev_stop(PORT_ID);
	rte_eth_dev_close(PORT_ID); /* detaches its XDP program */
	print_kinds(share * (double)(last - first) / 1e9);
	_exit(0);
}
