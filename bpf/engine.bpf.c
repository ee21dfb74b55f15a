// The causal engine: one translation unit. Its sizes and the offsets of kernel fields are given on the command line by
// causal/engine.py, which also puts the headers in place: bcc rewrites map accesses only in the main file.

#include "clock.h"
#include "events.h"
#include "pause.h"
#include "progress.h"
#include "regions.h"
#include "waits.h"
#include "unwind.h"
#include "sampler.h"
#include "sched.h"
