"""What this kernel and this user can do: every ability the profiler needs, found by trying it, with its remedy.

Nothing here looks at a kernel version: distributions backport and disable features, so each probe does a small
harmless instance of the thing itself (creates a map, loads a two-instruction program, opens an event) and reports
what happened. `causal-bpf doctor` prints the list; recording starts with `require()`.
"""

from __future__ import annotations

import ctypes
import errno
import importlib.machinery
import mmap
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from causal import kernel_calls as kernel
from causal.btf import kernel_types
from causal.errors import CausalError
from causal.processes import forbidden_by_yama

TRACEFS_PATHS = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))
BTF_PATH = Path("/sys/kernel/btf/vmlinux")
UPROBE_PMU_PATH = Path("/sys/bus/event_source/devices/uprobe/type")
LOCKDOWN_PATH = Path("/sys/kernel/security/lockdown")
PARANOID_PATH = Path("/proc/sys/kernel/perf_event_paranoid")
STUB_PATH = Path(__file__).resolve().parent.parent / "bpf" / "stub" / "libcausal-stub.so"
INJECTOR_PATH = STUB_PATH.with_name("causal-inject")

# The inode of the first pid namespace never changes (PROC_PID_INIT_INO in the kernel's proc_ns.h).
INITIAL_PID_NAMESPACE = 0xEFFFFFFC

TRACEPOINTS = (
    "sched_switch",
    "sched_waking",
    "sched_process_fork",
    "sched_process_exec",
    "sched_process_exit",
    "sys_enter",
    "sys_exit",
    "irq_handler_entry",
    "irq_handler_exit",
    "softirq_entry",
    "softirq_exit",
    "local_timer_entry",
    "local_timer_exit",
    "reschedule_entry",
    "reschedule_exit",
)

_INSTALL_BCC = "install it: sudo apt install python3-bpfcc (Debian, Ubuntu) or sudo dnf install python3-bcc (Fedora)"
_IN_CONTAINER = "in a container: docker run --privileged --pid=host (or podman), so that it shares the host's view"


@dataclass(frozen=True)
class Capability:
    """One ability: whether we have it, whether we can do without, what was seen, and what to do about it."""

    name: str
    ok: bool
    required: bool
    detail: str
    remedy: str


class _Missing(Exception):
    """Raised by a probe that did not succeed."""

    def __init__(self, detail: str, remedy: str) -> None:
        super().__init__(detail)
        self.detail = detail
        self.remedy = remedy


@dataclass(frozen=True)
class _Probe:
    name: str
    required: bool
    try_it: Callable[[], str]  # returns what was found, raises _Missing

    def run(self) -> Capability:
        try:
            return Capability(self.name, True, self.required, self.try_it(), "")
        except _Missing as missing:
            return Capability(self.name, False, self.required, missing.detail, missing.remedy)
        except (OSError, subprocess.SubprocessError) as error:  # /proc or /sys hidden by a container, and the like
            detail = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else str(error)
            return Capability(self.name, False, self.required, detail, _IN_CONTAINER)


def probe() -> list[Capability]:
    """Try everything; the order is such that the first missing one is the cause of the later ones."""
    return [each.run() for each in _PROBES]


def require() -> None:
    """Raise CausalError for the first required capability that is missing, with its remedy as the hint."""
    for each in _PROBES:
        if not each.required:
            continue
        found = each.run()
        if not found.ok:
            raise CausalError(f"cannot profile here: {found.name}: {found.detail}", found.remedy)


def ensure_tracefs() -> Path:
    """Where tracefs is mounted; mounts it at /sys/kernel/tracing when it is nowhere and we may.

    Raises CausalError when there is none or it cannot be read.
    """
    for path in TRACEFS_PATHS:
        if os.path.isdir(path / "events"):
            return path
    path = TRACEFS_PATHS[0]
    if os.geteuid() != 0:
        raise CausalError(f"tracefs is not mounted at {path}, or not readable for this user", as_root())
    try:
        kernel.mount("tracefs", path, "tracefs")
    except OSError as error:
        hint = f"mount it by hand: mount -t tracefs tracefs {path}; {_IN_CONTAINER}"
        raise CausalError(f"tracefs is not mounted, and mounting it failed: {error.strerror}", hint) from error
    return path


def as_root() -> str:
    """The advice to run the same command again with sudo, spelled out (sudo does not search a .venv)."""
    program = shutil.which(sys.argv[0]) or sys.argv[0]
    if os.path.basename(program) != "causal-bpf":
        return "run it as root (sudo)"
    return "run it as root: " + shlex.join(["sudo", os.path.abspath(program), *sys.argv[1:]])


# Probes, in the order in which they are tried.


def _architecture() -> str:
    machine = platform.machine()
    if machine != "x86_64" or sys.maxsize < 2**32:
        raise _Missing(f"{machine}, {sys.maxsize.bit_length() + 1}-bit Python", "only 64-bit x86 is supported")
    return machine


def _privileges() -> str:
    held = kernel.effective_capabilities()
    if "CAP_SYS_ADMIN" in held:  # includes the two others
        return f"uid {os.geteuid()} with CAP_SYS_ADMIN"
    lacking = [name for name in ("CAP_BPF", "CAP_PERFMON") if name not in held]
    if not lacking:
        return f"uid {os.geteuid()} with CAP_BPF and CAP_PERFMON"
    remedy = _IN_CONTAINER if os.geteuid() == 0 else as_root()
    raise _Missing(f"uid {os.geteuid()} without {' and '.join(lacking)}", remedy)


def _pid_namespace() -> str:
    inode = os.stat("/proc/self/ns/pid").st_ino
    if inode != INITIAL_PID_NAMESPACE:
        detail = f"inside pid namespace {inode}, while the kernel's events carry the host's process ids"
        raise _Missing(detail, "run it on the host, from where it sees into containers too; " + _IN_CONTAINER)
    return "the host's"


def _lockdown() -> str:
    try:
        text = LOCKDOWN_PATH.read_text()
    except FileNotFoundError:
        return "none"
    if "[confidentiality]" in text:
        raise _Missing("confidentiality: BPF may not read memory", "boot with lockdown=integrity or none")
    return text[text.find("[") + 1 : text.find("]")] if "[" in text else text.strip()


def _bcc() -> str:
    # Looked for but not imported: the import alone loads LLVM.
    spec = importlib.machinery.PathFinder.find_spec("bcc")
    if spec is None:
        hidden = list(Path("/usr/lib").glob("python3*/*-packages/bcc/libbcc.py"))
        if hidden:
            remedy = "use a .venv made from /usr/bin/python3 with --system-site-packages (scripts/setup makes one)"
            raise _Missing(f"installed in {hidden[0].parent}, which this Python does not search", remedy)
        raise _Missing("the Python package bcc is not installed", _INSTALL_BCC)
    folders = list(spec.submodule_search_locations or [])
    if not any(os.path.exists(os.path.join(folder, "libbcc.py")) for folder in folders):
        where = folders[0] if folders else spec.origin
        raise _Missing(f"{where} is another project of that name", f"pip uninstall bcc, then {_INSTALL_BCC}")
    try:
        ctypes.CDLL("libbcc.so.0")
    except OSError as error:
        raise _Missing(f"its library does not load: {error}", _INSTALL_BCC) from None
    return folders[0]


def _bpf_maps() -> str:
    try:
        os.close(kernel.create_array_map(value_size=8))
    except OSError as error:
        remedy = "boot a kernel with CONFIG_BPF_SYSCALL=y" if error.errno == errno.ENOSYS else _refused(error, "4.4")
        raise _Missing(f"bpf() refuses a map: {error.strerror}", remedy) from None
    return "a map was created"


def _mmapable_maps() -> str:
    try:
        descriptor = kernel.create_array_map(value_size=mmap.PAGESIZE, flags=kernel.BPF_F_MMAPABLE)
    except OSError as error:
        raise _Missing(f"bpf() refuses an mmapable array: {error.strerror}", _refused(error, "5.5")) from None
    try:
        mmap.mmap(descriptor, mmap.PAGESIZE).close()
    except OSError as error:
        raise _Missing(f"the array cannot be mapped: {error.strerror}", _refused(error, "5.5")) from None
    finally:
        os.close(descriptor)
    return "an array was mapped"


def _send_signal() -> str:
    call = [kernel.set_register(1, 0), kernel.call(kernel.HELPER_SEND_SIGNAL_THREAD)]
    return _load_helper("bpf_send_signal_thread", call, "5.5")


def _user_registers() -> str:
    call = [
        kernel.call(kernel.HELPER_GET_CURRENT_TASK_BTF),
        kernel.copy_register(1, 0),
        kernel.call(kernel.HELPER_TASK_PT_REGS),
    ]
    return _load_helper("bpf_task_pt_regs", call, "5.15")


def _load_helper(name: str, call: list[bytes], since: str) -> str:
    try:
        os.close(kernel.load_program(kernel.PROG_TYPE_PERF_EVENT, call))
    except OSError as error:
        raise _Missing(f"a program that calls {name} is refused: {error.strerror}", _refused(error, since)) from None
    return f"{name} loads"


def _btf() -> str:
    try:
        with BTF_PATH.open("rb") as file:
            if file.read(2) not in (b"\x9f\xeb", b"\xeb\x9f"):
                raise _Missing(f"{BTF_PATH} is not BTF", "boot a kernel with CONFIG_DEBUG_INFO_BTF=y")
    except FileNotFoundError:
        raise _Missing(f"no {BTF_PATH}", "boot a kernel with CONFIG_DEBUG_INFO_BTF=y (distributions' are)") from None
    return str(BTF_PATH)


def _tracefs() -> str:
    try:
        return str(ensure_tracefs())
    except CausalError as error:
        raise _Missing(error.message, f"needed for progress points tracepoint:... only; {error.hint}") from None


def _tracepoints() -> str:
    try:
        types = kernel_types(BTF_PATH)
    except CausalError as error:
        raise _Missing("unknown without BTF", error.hint) from None
    absent = [name for name in TRACEPOINTS if not types.has_tracepoint(name)]
    if absent:
        remedy = "boot a kernel with CONFIG_FTRACE_SYSCALLS and the standard trace events (distributions' are)"
        raise _Missing("no " + ", ".join(absent), remedy)
    return f"all {len(TRACEPOINTS)} there"


def _cpu_clock() -> str:
    try:
        os.close(kernel.open_perf_event(kernel.PERF_TYPE_SOFTWARE, kernel.PERF_COUNT_SW_CPU_CLOCK))
    except OSError as error:
        raise _Missing(f"perf_event_open refuses cpu-clock: {error.strerror}", _refused(error, "2.6.31")) from None
    return "opens on one CPU"


def _uprobes() -> str:
    try:
        event_type = int(UPROBE_PMU_PATH.read_text())
    except FileNotFoundError:
        raise _Missing(f"no {UPROBE_PMU_PATH}", "boot a kernel with CONFIG_UPROBE_EVENTS=y") from None
    try:
        # On the text of this very module: a file that no process maps as code, so nothing is ever hit.
        os.close(kernel.open_perf_event(event_type, 0, path=os.path.abspath(__file__)))
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES):
            return f"by a uprobe_multi link: {_uprobe_multi()}"  # which needs no CAP_SYS_ADMIN
        if error.errno != errno.EIO:  # EIO: a file system that cannot hold uprobes; the machinery is there
            raise _Missing(f"a uprobe is refused: {error.strerror}", _refused(error, "4.17")) from None
    return "one was placed"


def _stub() -> str:
    remedy = "build it: scripts/setup (in a checkout), or install the package again"
    if not STUB_PATH.exists():
        raise _Missing(f"no {STUB_PATH}", remedy)
    if any(character in str(STUB_PATH) for character in " :"):
        raise _Missing(f"{STUB_PATH} has a blank or a colon in its path", "move the installation (ld.so splits there)")
    command = [shutil.which("true") or "/bin/true"]
    environment = {"LD_PRELOAD": str(STUB_PATH)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=10)
    if done.returncode or "LD_PRELOAD" in done.stderr:
        raise _Missing(f"{STUB_PATH} cannot be preloaded: {done.stderr.strip() or done.returncode}", remedy)
    return str(STUB_PATH)


def _injector() -> str:
    remedy = "needed by attach and for static programs; build it: scripts/setup, or install the package again"
    if not os.access(INJECTOR_PATH, os.X_OK):
        raise _Missing(f"no {INJECTOR_PATH}", remedy)
    may_trace_all = "CAP_SYS_PTRACE" in kernel.effective_capabilities()
    if why := forbidden_by_yama(may_trace_all):
        fact, _, advice = why.partition("; ")
        raise _Missing(fact, f"attach and static programs have no experiments without it: {advice}")
    if not may_trace_all:
        return f"{INJECTOR_PATH}, for processes of this user only (no CAP_SYS_PTRACE)"
    return str(INJECTOR_PATH)


def _uprobe_multi() -> str:
    remedy = "not needed; many functions are probed faster with it (Linux 6.6, CONFIG_UPROBE_EVENTS)"
    try:
        kernel.create_uprobe_multi_link("/")
    except OSError as error:
        # A directory cannot hold a probe. Kernels that know the link say so with EBADF after having looked at
        # the path (89ae89f53d20, "bpf: Add multi uprobe link"), older ones say EINVAL at once.
        if error.errno != errno.EBADF:
            raise _Missing(f"the link is refused: {error.strerror}", remedy) from None
    return "the link is known"


def _hardware_cycles() -> str:
    try:
        os.close(kernel.open_perf_event(kernel.PERF_TYPE_HARDWARE, kernel.PERF_COUNT_HW_CPU_CYCLES))
    except OSError as error:
        raise _Missing(f"no cycle counter: {error.strerror}", "not needed; usual in virtual machines") from None
    return "opens on one CPU"


def _paranoid() -> str:
    return f"kernel.perf_event_paranoid = {PARANOID_PATH.read_text().strip()} (root is not bound by it)"


def _refused(error: OSError, since: str) -> str:
    """What to do when the kernel says no: get the privilege, or else a kernel that knows the thing."""
    if error.errno in (errno.EPERM, errno.EACCES):
        return _IN_CONTAINER if os.geteuid() == 0 else as_root()
    return f"boot a newer kernel (mainline has it since {since})"


_PROBES = (
    _Probe("architecture", True, _architecture),
    _Probe("privileges", True, _privileges),
    _Probe("pid namespace", True, _pid_namespace),
    _Probe("lockdown", True, _lockdown),
    _Probe("bcc", True, _bcc),
    _Probe("stub library", True, _stub),
    _Probe("bpf maps", True, _bpf_maps),
    _Probe("mmapable maps", True, _mmapable_maps),
    _Probe("BTF", True, _btf),
    _Probe("signals from BPF", True, _send_signal),
    _Probe("user registers", True, _user_registers),
    _Probe("tracepoints", True, _tracepoints),
    _Probe("cpu-clock event", True, _cpu_clock),
    _Probe("uprobes", True, _uprobes),
    _Probe("injector", False, _injector),
    _Probe("tracefs", False, _tracefs),
    _Probe("uprobe_multi link", False, _uprobe_multi),
    _Probe("hardware cycles", False, _hardware_cycles),
    _Probe("perf paranoia", False, _paranoid),
)
