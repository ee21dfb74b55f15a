"""Files of COZ in all the forms they have had, and whatever else is offered as a profile."""

import json
from dataclasses import replace

import pytest

from causal.analysis import analyse
from causal.analysis.results import Verdict
from causal.combining import combine
from causal.errors import CausalError, UsageError
from causal.profile import End, Header, ProfileWriter, ProgressPoint, Region, Visits, Window, read_profile
from causal.reading import read_any

SECOND = 10**9
BASELINES, LEVELS = 8, (0.2, 0.4, 0.6, 0.8)


def runs(region="main.c:7", gain=0.5, point="done"):
    """What COZ does with a line that is worth something: (region, speedup, duration, points)."""
    for number in range(40):
        speedup = 0.0 if number % 3 == 0 else LEVELS[number % 4]
        visits = round(1000 / (1 - gain * speedup)) + number % 5
        yield region, speedup, SECOND, {point: visits}


def json_form(dash, experiments):
    name = ("throughput-point", "latency-point") if dash == "-" else ("throughput_point", "latency_point")
    yield json.dumps({"type": "startup", "time": 5})
    for region, speedup, duration, points in experiments:
        experiment = {"type": "experiment", "selected": region, "speedup": speedup, "duration": duration}
        yield json.dumps(experiment | {f"selected{dash}samples": 3})
        for point, delta in points.items():
            yield json.dumps({"type": name[0], "name": point, "delta": delta})
    yield json.dumps({"type": "runtime", "time": 60 * SECOND})
    yield json.dumps({"type": "samples", "location": "main.c:7", "count": 30})


def tab_form(kind, experiments):
    yield "startup\ttime=5"
    for region, speedup, duration, points in experiments:
        yield f"experiment\tselected={region}\tspeedup={speedup:.2f}\tduration={duration}\tselected-samples=3"
        for point, delta in points.items():
            extra = "type=source\t" if kind == "progress-point" else ""
            yield f"{kind}\tname={point}\t{extra}delta={delta}"
    yield f"runtime\ttime={60 * SECOND}"
    yield "samples\tlocation=main.c:7\tcount=30"


FORMS = {
    "json": lambda experiments: json_form("-", experiments),
    "json with underscores": lambda experiments: json_form("_", experiments),
    "tabs": lambda experiments: tab_form("throughput-point", experiments),
    "oldest": lambda experiments: tab_form("progress-point", experiments),
}


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_coz_gives_the_same_profile(tmp_path, form):
    profile = read_any(write(tmp_path / "profile.coz", FORMS[form](runs())))
    assert [point.name for point in profile.header.progress_points] == ["done"]
    assert profile.regions == (Region("main.c:7", "line"),)
    assert len(profile.windows) == 40 and sum(window.arm == "placebo" for window in profile.windows) == 14
    assert profile.windows[1].speedup == 0.4 and profile.windows[1].selected_samples == 3
    assert profile.samples == {"main.c:7": 30} and profile.runtime_ns == 60 * SECOND and not profile.truncated
    (result,) = analyse(profile).regions
    assert result.verdict is Verdict.OPTIMISE and result.cpu_share == 1.0 and result.pairs == 26
    assert result.fit.at(0.5).gain == pytest.approx(0.25, abs=0.01)
    assert [point.experiments for point in result.points] == [14, 6, 7, 7, 6]


def test_durations_below_zero_wrapped_around(tmp_path):
    wrapped = ("main.c:7", 0.8, 2**64 - 12345, {"done": 1000})
    profile = read_any(write(tmp_path / "p", json_form("-", [*runs(), wrapped])))
    assert [window.void for window in profile.windows if window.void] == ["more delay than time"]
    assert analyse(profile).regions[0].pairs == 26


def test_a_file_cut_off_anywhere_can_be_read(tmp_path):
    for form, lines in FORMS.items():
        text = "".join(f"{line}\n" for line in lines(runs())).encode()
        whole = text.index(b"experiment")
        for end in range(len(text) - 130, len(text)):
            path = tmp_path / "cut"
            path.write_bytes(text[: max(end, whole)])
            profile = read_any(path)
            assert len(profile.windows) in (39, 40), form
            assert all(visits.delta >= 1000 for window in profile.windows for visits in window.points), form


def test_runs_appended_to_one_file_add_up(tmp_path):
    lines = list(tab_form("throughput-point", runs()))
    profile = read_any(write(tmp_path / "p", lines + lines))
    assert len(profile.windows) == 80 and profile.samples == {"main.c:7": 60} and profile.runtime_ns == 120 * SECOND


def test_totals_repeated_within_a_run_do_not(tmp_path):
    profile = read_any(write(tmp_path / "p", [*json_form("-", runs()), *list(json_form("-", []))[1:]]))
    assert profile.samples == {"main.c:7": 30} and profile.runtime_ns == 60 * SECOND


def test_latency_points_count_what_was_completed(tmp_path):
    lines = ["startup\ttime=1", "experiment\tselected=a.c:1\tspeedup=0.00\tduration=100\tselected-samples=1",
             "latency-point\tname=request\tarrivals=12\tdepartures=10\tdifference=2.50"]  # fmt: skip
    profile = read_any(write(tmp_path / "p", lines))
    assert profile.windows[0].points == (Visits("request", 10),)
    assert any("request is a latency point" in message for message in profile.end.messages)


def test_a_garbled_line_costs_its_experiment_only(tmp_path):
    lines = list(tab_form("throughput-point", runs()))
    lines[5] = "experiment\tselected=main.c:7\tspeedup=0.experiment\tselected"
    profile = read_any(write(tmp_path / "p", lines))
    assert len(profile.windows) == 39 and all(len(window.points) == 1 for window in profile.windows)
    assert any("1 of" in message for message in profile.end.messages)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\x7fELF\x02\x01\x01" + bytes(4000), "is not a causal-bpf profile"),
        (b"hello\nworld\n", "is not a causal-bpf profile"),
        (b"startup\ttime=1\n" + b"nonsense\n" * 30, "is damaged: 29 of 31 lines"),
        (b'{"type":"causal-bpf","version":99,"program":"causal-bpf 9"}\n', "newer than this program reads"),
        (b'startup\ttime=1\n{"type":"causal-bpf","version":1,"command":[],"pid":1}\n', "after one of COZ"),
        (b'{"type":"causal-bpf","version":1,"command":[],"pid":1}\nstartup\ttime=1\nruntime\ttime=2\n', "damaged at"),
        (b'{"type":"causal-bpf","version":1,"command":[],"pid":1}\n' * 2, "several profiles, the second from line 2"),
    ],
)  # fmt: skip
def test_what_is_no_profile_is_refused_with_a_remedy(tmp_path, content, message):
    path = tmp_path / "größe"
    path.write_bytes(content)
    with pytest.raises(CausalError, match=message) as caught:
        read_any(path)
    assert caught.value.hint


def test_zero_experiments_one_region_and_no_visits(tmp_path):
    assert analyse(read_any(write(tmp_path / "a", ["startup\ttime=1", "runtime\ttime=5"]))).regions == ()
    silent = [(region, s, d, {"done": 0}) for region, s, d, _ in runs()]
    (result,) = analyse(read_any(write(tmp_path / "b", json_form("-", silent)))).regions
    assert result.verdict is Verdict.UNDECIDED and result.fit is None


# Several profiles of one program


def record(path, gain, program="prog", first_pair=1, start_ns=SECOND):
    with ProfileWriter(path) as writer:
        writer.header(Header("test", (f"/usr/bin/{program}",), 1, "", progress_points=(ProgressPoint("done"),)))
        writer.region(Region("work", "function", "/usr/bin/prog"))
        for pair in range(first_pair, first_pair + 12):
            level = (pair % 4 + 1) / 4
            for arm in ("treated", "placebo"):
                visits = 1000 / (1 - gain * level) if arm == "treated" else 1000
                start_ns += 2 * SECOND
                points = (Visits("done", round(visits) + pair % 3),)
                speedup = level if arm == "treated" else 0.0
                writer.window(Window("work", arm, pair, level, speedup, SECOND, SECOND, 0, start_ns,
                                     selected_samples=9, points=points))  # fmt: skip
        writer.samples("work", 100)
        writer.end(End("duration", 0, 200, 150, 1000, 50 * SECOND, {"signals": 7, "pause_error_p99_ns": 10 * gain}))
    return read_profile(path)


def test_profiles_of_one_program_combine(tmp_path):
    parts = [record(tmp_path / "a", 0.4), record(tmp_path / "b", 0.4, start_ns=5000 * SECOND)]
    whole = combine(parts)
    assert analyse(whole).regions[0].pairs == 24 and len({window.pair for window in whole.windows}) == 24
    assert whole.samples == {"work": 200} and whole.end.samples == 400 and whole.end.diagnosis["signals"] == 14
    assert whole.end.diagnosis["pause_error_p99_ns"] == 4.0
    starts = [window.start_ns for window in whole.windows]
    assert starts == sorted(starts) and starts[-1] - starts[0] < 110 * SECOND
    alone, both = analyse(parts[0]).regions[0].fit.at(1.0), analyse(whole).regions[0].fit.at(1.0)
    assert both.gain == pytest.approx(alone.gain, abs=0.01)
    assert combine(parts[:1]) is parts[0]


def test_profiles_of_different_programs_do_not(tmp_path):
    with pytest.raises(UsageError, match=r"of prog, .* of other"):
        combine([record(tmp_path / "a", 0.4), record(tmp_path / "b", 0.4, "other")])


def test_the_shares_of_the_serial_path_combine_where_all_have_them(tmp_path):
    first, second = record(tmp_path / "a", 0.4), record(tmp_path / "b", 0.4)
    known = replace(first, serial={"work": 60.0}), replace(second, serial={"work": 40.0, "rest": 5.0})
    assert combine(known).serial == {"work": 100.0, "rest": 5.0}
    assert combine([known[0], second]).serial == {}


def test_what_the_runs_were_told_of_is_not_lost_when_they_combine(tmp_path):
    def told(name, **entries):
        profile = record(tmp_path / name, 0.4)
        return replace(profile, end=replace(profile.end, diagnosis=profile.end.diagnosis | entries))

    def without(frames):
        return {"without": [{"path": "libx", "frames": frames, "reason": ""}, "nonsense"]}

    first = told("a", unpaused=1, probe_costs=[{"point": "p", "ns": 600}], unwinding=without(5))
    second = told("b", probe_costs=[{"point": "p", "ns": 9000}, {"point": "q", "ns": 1}], unwinding=without(3))
    both = combine([first, second]).end.diagnosis
    assert both["unpaused"] == 0 and combine([first, first]).end.diagnosis["unpaused"] == 1
    assert both["probe_costs"] == [{"point": "p", "ns": 9000}, {"point": "q", "ns": 1}]
    assert both["unwinding"]["without"] == [{"path": "libx", "frames": 5, "reason": ""}]


def test_profiles_with_different_given_speedups_do_not_combine(tmp_path):
    first, second = record(tmp_path / "a", 0.4), record(tmp_path / "b", 0.4)
    given = replace(second, header=replace(second.header, options={"given": {"parse": 0.5}}))
    with pytest.raises(UsageError, match="different --given"):
        combine([first, given])
    assert len(combine([given, given]).windows) == 2 * len(given.windows)
