"""The kernel side as a Python object: loads `bpf/`, owns its maps, starts windows and reads what was cut.

Times are monotonic nanoseconds; `G` is the global virtual clock.
"""

from __future__ import annotations

import ctypes
import mmap
import random
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from causal.btf import kernel_types
from causal.compile_flags import compile_flags
from causal.counting import Counted, Edges, Source
from causal.errors import CausalError
from causal.loading import BPF_DIRECTORY, captured_output, counter_names, import_bcc, inlined, map_array, refusals
from causal.off_cpu import add_blocked, count_idle, finished_waits, read_waits, waiting_since
from causal.perf_events import CpuClock, online_cpus, spread_periods
from causal.point_probes import MACRO, PointProbes, programs_of_points
from causal.range_pages import RANGE_PAGE
from causal.unwind.modules import Memory
from causal.unwind.rules import ROW_DTYPE
from causal.waiting import WaitMode, Waits, by_region
from causal.windows import Arm, Attribution, EngineOptions, PointReading, WindowPlan, WindowReading

PAUSE_SIGNAL = signal.SIGURG

# As in bpf/regions.h and bpf/unwind.h.
MAPPING = np.dtype(
    [("start", "<u8"), ("end", "<u8"), ("offset", "<u8"), ("lo", "<u4"), ("hi", "<u4"), ("region", "<u4"),
     ("sampled", "<u4"), ("module", "<u4"), ("pc", "<u4"), ("guessed", "<u4"), ("pages", "<u4")]
)  # fmt: skip
SPACE = np.dtype([("first", "<u4"), ("count", "<u4")])
UNWIND_PAGE = np.dtype("<u8")
UNWIND_MODULE = np.dtype([("first_page", "<u4"), ("pages", "<u4"), ("page", "<u4"), ("pad", "<u4")])
RANGE = np.dtype([("start", "<u8"), ("end", "<u8"), ("region", "<u4"), ("pad", "<u4")])
REGION_STATE = np.dtype([("samples", "<u8"), ("serial", "<u8"), ("given", "<u8")])
_SERIAL_UNIT = 65536

_INTERRUPTS = (
    "irq_handler", "local_timer", "reschedule", "call_function", "call_function_single", "x86_platform_ipi",
    "error_apic", "spurious_apic", "thermal_apic", "threshold_apic", "deferred_error_apic",
)  # fmt: skip
# Who counts is known from these alone. They are rare.
_TELL_WHO_BELONGS = frozenset({b"sched_process_fork", b"sched_process_exec"})
_SETTLED_LOAD_S = 0.01
# How far periods wander, and how often. Where rounds of the target and ticks beat, ticks at a constant period find the
# same part of the round for a long time: in the simulator the mean error at rounds of half a period is 7.0 points with
# constant periods and 0.9 with wandering ones.
_WANDER = 0.1
_WANDER_S = 0.03


@dataclass
class _Loaded:
    bpf: Any
    mappings: npt.NDArray[Any]
    spaces: npt.NDArray[Any]
    ranges: npt.NDArray[Any]
    range_pages: npt.NDArray[Any]
    region_states: npt.NDArray[Any]
    probes: PointProbes
    unwind: Memory
    waiting: npt.NDArray[np.uint64]
    maps: list[mmap.mmap] = field(default_factory=list)


class Engine:
    """Load with `load()`, name the target with `add_process`, then `begin` windows and `poll` their readings.

    Raises CausalError when the kernel refuses a program. `close()` (or leaving the `with` block) detaches everything,
    after which no thread of the target is paused for longer than one slice of 5 ms.
    """

    def __init__(self, options: EngineOptions, rng: random.Random | None = None) -> None:
        self.options = options
        self.cpus = online_cpus()
        self._rng = rng or random.Random()
        self._counter_names = counter_names()
        self._clocks: list[CpuClock] = []
        self._sources: list[Source] = [Counted(number) for number in range(options.max_points)]
        self._plan: WindowPlan | None = None
        self._generation = 0
        self._given: dict[int, float] = {}
        self._open_start: Any = None
        self._wandered_s = 0.0
        self.wait_mode = WaitMode.NONE
        self.sample_cost_ns = 0  # what a tick costs the thread it interrupts; see causal/calibration.py
        self._loaded: _Loaded | None = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- loading -----------------------------------------------------------------------------------------------------

    def load(self, points: int = 0, wait_mode: WaitMode = WaitMode.NONE, sampled: bool = False) -> None:
        """Compile, load and attach everything but progress points; `points` is how many of those there will be.

        `wait_mode`: which waits belong to the regions. `sampled`: whether some points are sampled lines.
        """
        if points > self.options.max_points:
            raise CausalError(
                f"{points} progress points are more than {self.options.max_points}", "name the ones that matter most"
            )
        source = inlined(BPF_DIRECTORY / "engine.bpf.c") + programs_of_points(points, self.options)
        bpf = self._compile(source, ["-DSAMPLED_POINTS"] if sampled else [])
        maps: list[mmap.mmap] = []
        self._loaded = _Loaded(
            bpf=bpf,
            mappings=map_array(bpf, "mappings", MAPPING, self.options.max_mappings, maps),
            spaces=map_array(bpf, "spaces", SPACE, self.options.max_spaces, maps),
            ranges=map_array(bpf, "ranges", RANGE, self.options.max_ranges, maps),
            range_pages=map_array(bpf, "range_pages", RANGE_PAGE, self.options.max_range_pages, maps),
            region_states=map_array(bpf, "region_states", REGION_STATE, self.options.max_regions, maps),
            probes=PointProbes(bpf, map_array(bpf, "macros", MACRO, self.options.max_macros, maps), self.options),
            unwind=Memory(
                rows=map_array(bpf, "unwind_rows", ROW_DTYPE, self.options.max_unwind_rows, maps),
                pages=map_array(bpf, "unwind_pages", UNWIND_PAGE, self.options.max_unwind_pages, maps),
                modules=map_array(bpf, "unwind_modules", UNWIND_MODULE, self.options.max_unwind_modules, maps),
            ),
            waiting=map_array(bpf, "waiting", np.dtype("<u8"), self.options.max_regions, maps),
            maps=maps,
        )
        self.wait_mode = wait_mode
        self.stop()  # so that waits are counted from now on where they belong
        self._attach_samplers(bpf)

    def _compile(self, source: str, further_flags: Sequence[str] = ()) -> Any:
        bcc = import_bcc()
        with refusals("the engine"):
            bpf = bcc.BPF(text=source, cflags=[*compile_flags(self.options, self.cpus), *further_flags])
            self._attach_hooks(bpf)
        return bpf

    def _attach_hooks(self, bpf: Any) -> None:
        for table, kind, names in (
            ("stages", bpf.PERF_EVENT, ("unwind_sample", "count_sample")),
            ("switch_stages", bpf.RAW_TRACEPOINT, ("unwind_at_switch", "settle_switch")),
        ):
            for number, name in enumerate(names):
                bpf[table][ctypes.c_int(number)] = ctypes.c_int(bpf.load_func(name, kind).fd)
        bpf.attach_raw_tracepoint(tp="sys_exit", fn_name="on_sys_exit")
        bpf.attach_raw_tracepoint(tp="sys_enter", fn_name="on_sys_enter")
        kernel = kernel_types()
        # Ends first: an interrupt that is being served while we attach must not leave its mark for good.
        for event in _INTERRUPTS:
            for suffix, function in (("exit", "on_interrupt_end"), ("entry", "on_interrupt")):
                if kernel.has_tracepoint(f"{event}_{suffix}"):
                    bpf.attach_raw_tracepoint(tp=f"{event}_{suffix}", fn_name=function)

    def set_period(self, period_ns: int) -> None:
        """Sample at about this period from now on."""
        self.options = replace(self.options, period_ns=period_ns)
        for clock in self._clocks:
            clock.close()
        self._clocks.clear()
        self._attach_samplers(self._kernel.bpf)

    def _attach_samplers(self, bpf: Any) -> None:
        program = bpf.load_func("on_sample", bpf.PERF_EVENT)
        for cpu, period_ns in zip(self.cpus, spread_periods(self.options.period_ns, len(self.cpus)), strict=True):
            self._clocks.append(CpuClock(cpu, period_ns, program.fd))

    @property
    def _kernel(self) -> _Loaded:
        assert self._loaded, "load() first"
        return self._loaded

    @property
    def probes(self) -> PointProbes:
        """What counts the visits of progress points."""
        return self._kernel.probes

    @property
    def answers_fd(self) -> int:
        """Descriptor of the table the stub maps."""
        return int(self._kernel.bpf["answers"].map_fd)

    # --- the target --------------------------------------------------------------------------------------------------

    def add_process(self, tgid: int, follow: bool = True, only_clock: bool = False) -> None:
        """Put a process on the clock; `follow` says whether its children join, `only_clock` that it is no region."""
        table = self._kernel.bpf["processes"]
        table[ctypes.c_uint32(tgid)] = table.Leaf(0, 0, 1, int(follow), int(only_clock), 0, 0)

    def add_blocked(self, tgid: int) -> None:
        """Note the threads of a process on the clock that wait now: no event tells of them before they go on."""
        add_blocked(self._kernel.bpf, tgid, self.wait_mode)

    def remove_process(self, tgid: int) -> None:
        table = self._kernel.bpf["processes"]
        if ctypes.c_uint32(tgid) in table:
            del table[ctypes.c_uint32(tgid)]

    def processes(self, regions_only: bool = False) -> dict[int, int]:
        """Processes on the clock -> how often their mappings were replaced (by exec) or are new (by fork).

        `regions_only` leaves out those that are no regions.
        """
        table = self._kernel.bpf["processes"]
        return {key.value: leaf.version for key, leaf in table.items() if not (regions_only and leaf.only_clock)}

    def spaces_in_use(self) -> set[int]:
        """Address spaces that processes have, those of children we have not met yet among them."""
        return {leaf.space for leaf in self._kernel.bpf["processes"].values()}

    def registered(self, tgid: int) -> bool:
        """Has the stub of this process reported?"""
        table = self._kernel.bpf["processes"]
        key = ctypes.c_uint32(tgid)
        return key in table and bool(table[key].handler)

    def set_space(self, tgid: int, space: int) -> None:
        """Tell which address space (an index given to `write_space`) a process has."""
        self._change_process(tgid, space=space)

    def set_process_region(self, tgid: int, region: int) -> None:
        """Make a whole process, and the children it forks from now on, one region."""
        self._change_process(tgid, region=region)

    def _change_process(self, tgid: int, **fields: int) -> None:
        table = self._kernel.bpf["processes"]
        key = ctypes.c_uint32(tgid)
        if key in table:
            leaf = table[key]
            # What the kernel side changes meanwhile would be lost, so only where there is something to change.
            if any(getattr(leaf, name) != value for name, value in fields.items()):
                for name, value in fields.items():
                    setattr(leaf, name, value)
                table[key] = leaf

    def write_ranges(self, ranges: npt.NDArray[Any]) -> None:
        """Replace the range table: an array of dtype RANGE, sorted within each binary's slice."""
        if len(ranges) > self.options.max_ranges:
            raise CausalError(
                f"{len(ranges)} code ranges do not fit the table of {self.options.max_ranges}",
                "narrow the scope, or raise --max-ranges",
            )
        self._kernel.ranges[: len(ranges)] = ranges

    def range_pages(self) -> npt.NDArray[Any]:
        """The memory for causal.range_pages."""
        return self._kernel.range_pages

    def write_space(self, space: int, first: int, mappings: npt.NDArray[Any]) -> None:
        """Write an address space: its mappings (dtype MAPPING, sorted) from index `first` on, then switch to them."""
        self._kernel.mappings[first : first + len(mappings)] = mappings
        self._kernel.spaces[space] = (first, len(mappings))

    def mappings(self, first: int, count: int) -> npt.NDArray[Any]:
        """The kernel's own rows (dtype MAPPING) of an address space: what is written here holds from now on."""
        return self._kernel.mappings[first : first + count]

    def unwind_memory(self) -> Memory:
        """The unwind tables, to be filled by causal.unwind.modules."""
        return self._kernel.unwind

    def threads(self) -> list[tuple[int, int]]:
        """(tid, tgid) of the threads on the clock."""
        return [(key.value, leaf.tgid) for key, leaf in self._kernel.bpf["threads"].items() if leaf.tgid]

    def set_thread_region(self, tid: int, region: int) -> None:
        self._kernel.bpf["thread_regions"][ctypes.c_uint32(tid)] = ctypes.c_uint32(region)

    def show(self, sources: Sequence[Source]) -> None:
        """Which points readings have, in which order (at first: all that there is room for)."""
        self._sources = list(sources)

    def wander(self) -> None:
        """Draw the sampling periods anew around the one asked for. To be called often; does so every 30 ms at most."""
        now_s = time.monotonic()
        if now_s - self._wandered_s < _WANDER_S:
            return
        self._wandered_s = now_s
        for clock in self._clocks:
            clock.set_period(round(clock.period_ns * self._rng.uniform(1 - _WANDER, 1 + _WANDER)) | 1)

    def tick(self, on: bool) -> None:
        """Start or stop the sampling ticks of all cores, outside of windows."""
        for clock in self._clocks:
            clock.start() if on else clock.stop()

    def reset(self) -> None:
        """Forget all threads and what was counted, as if just loaded."""
        bpf = self._kernel.bpf
        bpf["threads"].clear()
        bpf["waits"].clear()
        self._kernel.waiting[:] = 0
        bpf["clocks"][ctypes.c_int(0)] = bpf["clocks"].Leaf()
        for i in range(len(self._counter_names)):
            bpf["counters"][ctypes.c_int(i)] = ctypes.c_uint64(0)

    # --- windows -----------------------------------------------------------------------------------------------------

    def give(self, speedups: Mapping[int, float]) -> None:
        """From the next window on these regions have a virtual speedup (a fraction) in all arms, baselines included."""
        self._given = dict(speedups)
        self._kernel.region_states["given"] = 0
        for region, speedup in speedups.items():
            self._kernel.region_states["given"][region] = round(speedup * 1000)

    def begin(self, plan: WindowPlan) -> int:
        """Start a window; returns when it will have ended, in monotonic ns. The clock is off between windows."""
        kernel = self._kernel
        self.stop()
        self.tick(False)
        since = waiting_since(kernel.bpf, plan.region)  # before there are edges that might pass meanwhile
        clock_state = kernel.bpf["clocks"][0]
        now = time.monotonic_ns()
        start = now + plan.settle_ns
        end = start + plan.length_ns
        self._plan = plan
        self._publish(
            clock_state, began_ns=now, deadline_ns=end + 4 * self.options.period_ns,
            edges=(start, start + plan.length_ns // 2, end), plan=plan, idle=count_idle(since, now),
        )  # fmt: skip
        for clock in self._clocks:
            # A phase of its own for each core and window.
            time.sleep(self._rng.random() * min(clock.period_ns / 1e9, _SETTLED_LOAD_S))
            clock.start()
        return end

    def _publish(
        self, state: Any, began_ns: int, deadline_ns: int, edges: Sequence[int], plan: WindowPlan, idle: int = 0
    ) -> None:  # fmt: skip
        table = self._kernel.bpf["experiments"]
        self._generation += 1
        leaf = table.Leaf()
        leaf.generation = self._generation
        leaf.base, leaf.cost_base, leaf.waited_base = state.granted, state.cost, state.waited
        leaf.began_ns, leaf.deadline_ns = began_ns, deadline_ns
        leaf.edge_ns[:] = list(edges)
        leaf.arm, leaf.region, leaf.permille = int(plan.arm), plan.region, round(plan.speedup * 1000)
        leaf.sample_cost_ns, leaf.given = self.sample_cost_ns, int(bool(self._given))
        leaf.waits = int(self.wait_mode)
        leaf.idle = idle
        table[ctypes.c_int(self._generation & 1)] = leaf
        self._kernel.bpf["generation"][ctypes.c_int(0)] = ctypes.c_uint64(self._generation)

    def begin_open(self, plan: WindowPlan) -> None:
        """Start a window whose end nobody knows yet (one execution of a program); see `extend` and `end_open`."""
        self.stop()
        self.tick(False)
        self._plan = plan
        since = waiting_since(self._kernel.bpf, plan.region)
        self._open_start = self._cut_here()
        far = 1 << 62
        state = self._kernel.bpf["clocks"][0]
        now = time.monotonic_ns()
        self._publish(state, now, now + plan.length_ns, (far, far, far), plan, count_idle(since, now))
        self.tick(True)

    def extend(self, length_ns: int) -> None:
        """Move the deadline of an open window: it ends `length_ns` from now unless moved again."""
        table = self._kernel.bpf["experiments"]
        key = ctypes.c_int(self._generation & 1)
        leaf = table[key]
        leaf.deadline_ns = time.monotonic_ns() + length_ns
        table[key] = leaf

    def end_open(self, point: PointReading) -> WindowReading:
        """End an open window; `point` is what its only progress point saw."""
        end = self._cut_here()
        reading = self._read(self._open_start, end, end)
        self.stop()
        return replace(reading, points=[point])

    def _cut_here(self) -> Any:
        """The same as the kernel's cuts, made from here: good enough when a window is a whole execution."""
        cut = self._kernel.bpf["cuts"].Leaf()
        state = self._kernel.bpf["clocks"][0]
        cut.now_ns, cut.granted, cut.cost = time.monotonic_ns(), state.granted, state.cost
        for i, value in enumerate(self.counters().values()):
            cut.counters[i] = value
        return cut

    def stop(self) -> None:
        """Stop the clock now; pauses end within one slice."""
        clock_state = self._kernel.bpf["clocks"][0]
        far = 1 << 62
        off = WindowPlan(Arm.OFF, 0, 0, 0, 0)
        self._publish(clock_state, time.monotonic_ns(), 0, (far, far, far), off)

    def poll(self) -> WindowReading | None:
        """The reading of the window that `begin` started, None while it is not over."""
        cuts = [self._kernel.bpf["cuts"][i] for i in range(3)]
        if self._plan is None or any(cut.generation != self._generation for cut in cuts):
            return None
        return self._read(*cuts)

    def _read(self, start: Any, middle: Any, end: Any) -> WindowReading:
        # As `is_placebo` in bpf/clock.h.
        placebo = self._plan is not None and self._plan.arm is Arm.PLACEBO and not self._given

        def taken(cut: Any) -> int:
            return int((cut.cost - start.cost) if placebo else (cut.granted - start.granted))

        wall = end.now_ns - start.now_ns
        counters = {name: int(end.counters[i] - start.counters[i]) for i, name in enumerate(self._counter_names)}
        return WindowReading(
            start_ns=start.now_ns,
            wall_ns=wall,
            delay_ns=int(end.granted - start.granted),
            effective_ns=wall - taken(end),
            half_effective_ns=middle.now_ns - start.now_ns - taken(middle),
            selected_samples=counters["selected"],
            selected_ns=counters["selected_ns"],
            samples=counters["in_scope"],
            counters=counters,
            points=[source.read(Edges(start, middle, end, placebo)) for source in self._sources],
        )

    def counters(self) -> dict[str, int]:
        """All counters of the kernel side since it was loaded."""
        table = self._kernel.bpf["counters"]
        return {name: int(table[i].value) for i, name in enumerate(self._counter_names)}

    def region_samples(self) -> npt.NDArray[np.uint64]:
        """Samples by region id since loading (a copy)."""
        return np.array(self._kernel.region_states["samples"])

    def serial_samples(self) -> npt.NDArray[np.float64]:
        """The same, each sample divided by how many threads could run at that moment; at 0 those outside of regions."""
        return self._kernel.region_states["serial"] / float(_SERIAL_UNIT)

    def sites(self) -> dict[int, tuple[int, int]]:
        """Call sites seen since loading: region id -> (region, region of the next frame in scope above it, or 0)."""
        if self.options.attribution is not Attribution.CALL_SITE:
            return {}
        return {number.value: (key.region, key.caller) for key, number in self._kernel.bpf["sites"].items()}

    def waits(self, finished: bool = False) -> Waits:
        """Thread time off the CPU since loading. `finished`: only of waits that are over, else also so far."""
        return finished_waits(self._kernel.bpf) if finished else read_waits(self._kernel.bpf)

    def region_waits(self, finished: bool = False) -> Counter[int]:
        """The same in ns for each region, as far as a virtual speedup shortens it."""
        sites = self.sites() if self.options.attribution is Attribution.CALL_SITE else None
        return by_region(self.waits(finished), self.wait_mode, sites)

    def pause_errors(self) -> list[int]:
        """Histogram of |debt| at the end of pauses; bucket i counts those below 2**(i+1) ns."""
        table = self._kernel.bpf["pause_errors"]
        return [int(table[i].value) for i in range(64)]

    def let_go(self) -> None:
        """Leave the target alone, for good: no samples and no hooks but progress points and those that tell new
        threads and processes of the target. Counters and waits stand still from now on."""
        self.stop()
        self._close_clocks()
        bpf = self._kernel.bpf
        with captured_output():
            for name in [name for name in bpf.raw_tracepoint_fds if name not in _TELL_WHO_BELONGS]:
                bpf.detach_raw_tracepoint(name)

    def _close_clocks(self) -> None:
        for clock in self._clocks:
            clock.stop()
            clock.close()
        self._clocks.clear()

    def close(self) -> None:
        """Detach everything. Pauses under way end because nobody answers the stub.

        Takes half a second, during which Ctrl-C waits: an interrupted clean-up could not be begun again.
        """
        if self._loaded is None:
            return
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            self._detach()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def _detach(self) -> None:
        self.stop()
        self._close_clocks()
        self.probes.close()
        loaded, self._loaded = self._kernel, None
        with captured_output():
            loaded.bpf.cleanup()
