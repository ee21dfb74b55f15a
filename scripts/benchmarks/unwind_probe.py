"""The engine with its last stage replaced: a sample's stack is handed out and its process frozen on the spot."""

import ctypes
import os
import signal
import subprocess
import time
from contextlib import contextmanager, suppress

from causal.engine import Engine
from causal.regions import RegionTable, Scope
from causal.target import Target

SIGSTOP = int(signal.SIGSTOP)
KEEP = """
struct kept {
	struct stack stack;
	u32 tid, user;
};
BPF_ARRAY(kept, struct kept, 1);
BPF_ARRAY(armed, u64, 1);

int keep_stack(struct bpf_perf_event_data *ctx)
{
	int zero = 0;
	struct stack *stack = stacks.lookup(&zero);
	u64 *is_armed = armed.lookup(&zero);
	struct kept *kept_stack = kept.lookup(&zero);
	u64 id = bpf_get_current_pid_tgid();
	u32 tgid = id >> 32;

	if (!stack)
		return 0;
	if (!is_armed)
		return 0;
	if (!kept_stack)
		return 0;
	if (!processes.lookup(&tgid) || !*is_armed || !stack->frames)
		return 0;
	if (!__sync_lock_test_and_set(is_armed, 0))
		return 0;
	bpf_probe_read_kernel(&kept_stack->stack, sizeof(struct stack), stack);
	kept_stack->user = ctx->regs.cs & 3;
	bpf_send_signal(%d);
	kept_stack->tid = id;
	return 0;
}
"""


class Probe(Engine):
    """`take` waits for a sample of a process on the clock; the process is then stopped where it was sampled."""

    def _compile(self, source, further_flags=()):
        return super()._compile(source + KEEP % SIGSTOP, further_flags)

    def freeze_at_samples(self):
        bpf = self._kernel.bpf
        program = bpf.load_func("keep_stack", bpf.PERF_EVENT)
        bpf["stages"][ctypes.c_int(1)] = ctypes.c_int(program.fd)
        self.stop()
        self.tick(True)

    def take(self, patience_s=2.0):
        """(tid, in user mode, ending, addresses) or None."""
        bpf = self._kernel.bpf
        zero = ctypes.c_int(0)
        bpf["kept"][zero] = bpf["kept"].Leaf()
        bpf["armed"][zero] = ctypes.c_uint64(1)
        until = time.monotonic() + patience_s
        while time.monotonic() < until:
            kept = bpf["kept"][0]
            if kept.tid:
                return kept.tid, bool(kept.user), kept.stack.ending, list(kept.stack.ip[: kept.stack.frames])
            time.sleep(0.0005)
        bpf["armed"][zero] = ctypes.c_uint64(0)
        return None


@contextmanager
def running(command, **options):
    """A process in a group of its own, killed at the end."""
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0, **options)
    try:
        yield child
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def target_for(engine, pid):
    """A Target that has read the mappings of this process."""
    engine.add_process(pid, follow=False)
    target = Target(engine, RegionTable("module"), Scope(os.readlink(f"/proc/{pid}/exe")))
    target.refresh()
    return target
