// Where a held thread lands when the injector is gone. See landing_x86_64.c.

#ifndef CAUSAL_LANDING_H
#define CAUSAL_LANDING_H

#include "tracee.h"

// What the landing finds in the memory that the target lends to an injection: descriptors to close, -1 for none.
#define SCRATCH_SOCKETS 0
#define SCRATCH_CONTROL 8
#define SCRATCH_RECEIVED 24 // the first descriptor in a control message
#define SCRATCH_SIZE 4096
#define CLEAN_UP_CALLS 4

// From here on the thread comes back to where it was by itself whenever it is let run. On OK, t->entry is the address
// of a system-call instruction after which the landing follows; t->landing is 0 where there is no room for one.
enum outcome prepare_landing(struct tracee *t);

// The landing closes what this memory names and returns it. It must hold SCRATCH_SIZE bytes, and name something or -1.
int tell_landing(const struct tracee *t, unsigned long scratch);

// The address at which its cleaning up begins.
unsigned long landing_start(const struct tracee *t);

// The thread has left.
void remove_landing(struct tracee *t);

#endif
