// SPDX-License-Identifier: Apache-2.0
/* The plant, an inverted pendulum: angle'' = pole^2 sin(angle) - push cos(angle), with gusts. Each
 * millisecond it sends its state to the controller, and applies the push of the latest answer. It
 * stays upright while answers are in time: with this controller, up to a delay of about 0.6/pole, 6
 * ms. Its clock stops while this process does not run, so that only the delay of the controller
 * counts.
 *
 *	plant [-p POLE] [-t SECONDS] [-d MS] [CONTROLLER]
 *
 * -d: delays answers by so many ms, to make it fall. Exits with 0 if it stayed upright, 1 if it
 * fell. */
#include <arpa/inet.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "pendulum.h"

#define STEP 0.001   /* s */
#define FALLEN 0.5   /* rad */
#define GUST	0.02  /* the maximum per step, rad/s */
#define ANSWERS 1024  /* answers that are stored, a power of two */

struct pendulum {
	uint32_t step;
	double angle, speed;
};

static double random_uniform(void)
{
	return (double)random() / (double)RAND_MAX * 2 - 1;
}

/* answers_receive reads all pending answers, and returns their number. */
static uint32_t answers_receive(int socket, struct force *answers)
{
	struct force f;
	uint32_t n = 0;

	for (; recv(socket, &f, sizeof(f), MSG_DONTWAIT) == sizeof(f); n++) {
		f.step = ntohl(f.step);
		answers[f.step % ANSWERS] = f;
	}
	return n;
}

/* answer_lookup returns the latest answer up to a step, or a push of 0. */
static struct force answer_lookup(const struct force *answers, uint32_t step)
{
	for (uint32_t i = 0; i < ANSWERS && i < step; i++)
		if (answers[(step - i) % ANSWERS].step == step - i)
			return answers[(step - i) % ANSWERS];
	return (struct force){ 0 };
}

static void pendulum_move(struct pendulum *s, double push, double pole)
{
	for (int i = 0; i < 10; i++) { /* semi-implicit Euler, 0.1 ms */
		s->speed += (pole * pole * sin(s->angle) - push * cos(s->angle)) * STEP / 10;
		s->angle += s->speed * STEP / 10;
	}
	s->speed += GUST * random_uniform();
	s->step++;
}

static void state_send(int socket, const struct pendulum *p)
{
	struct state s = { .kind = { 'C', 'T', 'R', 'L' },
			   .step = htonl(p->step),
			   .angle = to_fixed(p->angle),
			   .speed = to_fixed(p->speed) };

	send(socket, &s, sizeof(s), 0);
}

int main(int argc, char **argv)
{
	struct sockaddr_in to = { .sin_family = AF_INET,
				  .sin_port = htons(PORT),
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct pendulum s = { 0 };
	static struct force answers[ANSWERS];
	struct timespec t;
	double pole = 100, seconds = 10, worst = 0;
	uint32_t lag = 0, delay = 0, answered = 0;
	int option, fd = socket(AF_INET, SOCK_DGRAM, 0);

	while ((option = getopt(argc, argv, "p:t:d:")) != -1) {
		switch (option) {
		case 'p': pole = atof(optarg); break;
		case 't': seconds = atof(optarg); break;
		case 'd': delay = (uint32_t)atoi(optarg); break;
		default: return 2;
		}
	}
	if (argv[optind] && inet_pton(AF_INET, argv[optind], &to.sin_addr) != 1) {
		fprintf(stderr, "plant: %s is no IPv4 address\n", argv[optind]);
		return 2;
	}
	if (connect(fd, (void *)&to, sizeof(to))) {
		perror("plant");
		return 2;
	}
	clock_gettime(CLOCK_MONOTONIC, &t);
	while (s.step < seconds / STEP && fabs(s.angle) < FALLEN) {
		state_send(fd, &s);
		next_step(&t, STEP * 1e9);
		answered += answers_receive(fd, answers);
		struct force f = answer_lookup(answers, s.step > delay ? s.step - delay : 0);

		if (f.step && s.step - f.step > lag)
			lag = s.step - f.step;
		worst = fmax(worst, fabs(s.angle));
		pendulum_move(&s, from_fixed(f.push), pole);
	}
	printf("%s %.2f s, largest angle %.4f rad, oldest answer %u ms, %u of %u states answered\n",
	       fabs(s.angle) < FALLEN ? "stood" : "fell after", s.step * STEP, worst, lag,
	       answered, s.step);
	return fabs(s.angle) >= FALLEN;
}
