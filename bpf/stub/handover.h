// What the injector does inside the target: receive the table of answers, map it, install the handler.

#ifndef CAUSAL_HANDOVER_H
#define CAUSAL_HANDOVER_H

#include "tracee.h"

#define DESCRIPTOR_NAME 48

struct injection {
	struct tracee thread;
	int pidfd, table, chain, reused;
	unsigned long lines;
	unsigned long scratch, area, next; // addresses in the target
	int sockets[2], received, ours;    // descriptors: of the target, of the target, of this process
	char socket_names[2][DESCRIPTOR_NAME];
	int signal;
	enum outcome how;
	char failed[64]; // which step, when how is REFUSED
	int error;
};

// All of it, in the one thread that is held and prepared; the result is in x->how. Nothing but the handler stays.
void hand_over(struct injection *x);

unsigned long handler_address(const struct injection *x);

// A child that another thread forked in the middle of it has copies of our descriptors; they are closed there too.
void close_in_children(struct injection *x);

#endif
