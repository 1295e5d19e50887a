"""Sweeps in one process: tasks by content, failures, resumption after a stop, and sweeps in files."""

import json
import pickle
import sys

import pytest

import fuser_lab as fl
from fuser_lab.cli import commands as cli
from fuser_lab.errors import ArgumentTypeError, InputError, SweepWarning, UnsupportedError
from fuser_lab.lab import cluster, sweeps
from fuser_lab.lab.performing import perform
from fuser_lab.lab.rows import canonical_text
from fuser_lab.plan.planning import definition_of


def softmax(*, scaled=False):
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        y = fd.define_tensor([-1], contiguity=True) if scaled else None
        e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [1], True)))
        found = fd.ops.truediv(e, fd.ops.sum(e, [1], True))
        fd.add_output(found if y is None else fd.ops.mul(found, fd.ops.broadcast(y, [True, False])))
    return fd


def ours(name="test", **more):
    sizes = more.pop("sizes", [(64, 32), (8, 16), (4, 4)])
    return fl.sweep({"softmax": softmax()}, sizes, work="certificate", name=name, **more)


def completed(sweep, ledger):
    rows = sweep.to_pandas(ledger)
    return rows[rows["elapsed"].notna()]


def test_a_task_is_its_content():
    first, second, third = ours().tasks
    assert len({first.key, second.key, third.key}) == 3
    assert [task.key for task in ours().tasks] == [first.key, second.key, third.key]
    assert fl.sweep({"other name": softmax()}, [(64, 32)], work="certificate", name="test").tasks[0].key == first.key
    assert ours(sizes=[(64, 32), [(64, 32)], [fl.spec((64, 32))]]).tasks == (first,), "written in three ways"
    others = [
        ours("another"), ours(targets=["A100"]), ours(strategies=["optimal"]),
        ours(sizes=[[fl.spec((64, 32), strides=(1, 64))]]),
        ours(options=[fl.SegmenterOptions(segment_set="cut")]), ours(schedules=[{0: {"grain": 2}}]),
    ]
    assert len({sweep.tasks[0].key for sweep in others} | {first.key}) == len(others) + 1
    assert pickle.loads(pickle.dumps(first)) == first
    # If a key changes, the tasks of every ledger run again.
    assert first.key == "272d938bfed67dde2fbb8b84"


def test_equal_definitions_have_equal_texts():
    for name in ("silu_mul", "layer_norm"):
        fd, _ = fl.example(name)
        text = canonical_text(definition_of(fd))
        again, _ = fl.load_repro(text)
        assert definition_of(again) == definition_of(fd)
        assert canonical_text(definition_of(again)) == text


def test_a_size_is_aligned_at_the_last_axis():
    (task,) = fl.sweep(softmax(scaled=True), [(64, 32)], work="segment").tasks
    assert [d.shape for d in task.inputs] == [(64, 32), (32,)]


def test_results_are_rows_and_what_fails_is_one(tmp_path):
    swept = fl.sweep(
        {"softmax": softmax(), "scaled": softmax(scaled=True)}, {"softmax": [(64, 32), (7,)]}, work="certificate",
        strategies=["bottom_up", "unfused"],
    )
    with fl.Ledger(tmp_path) as ledger:
        result = swept.run(ledger, progress=False)
        rows = swept.to_pandas(ledger)
        assert swept.run(ledger, progress=False).kept == len(swept)
        assert swept.missing(ledger) == []
        assert [str(task) for task in swept.missing(ledger, again="failed")] == [str(t) for t, _ in result.failures]
        assert len(swept.missing(ledger, again=True)) == 6
    assert (result.done, result.kept, len(result.failures)) == (6, 0, 4)
    reasons = {reason for _, reason in result.failures}
    assert {reason[:30] for reason in reasons} == {"the size [7] is too short for ", "inputs must be given: T0_g_flo"}
    assert set(rows["failure"].dropna()) == reasons
    assert "4 of them failed" in str(result)
    whole = rows[rows["segment"].isna() & rows["failure"].isna()].set_index("strategy")
    plan = fl.segment(softmax(), [fl.spec((64, 32))], strategy="unfused")
    assert whole.loc["unfused", "cost"] == plan.certificate().cost
    assert whole.loc["unfused", "bound"] == whole.loc["bottom_up", "cost"]
    assert list(whole["segments"]) == [1, len(plan.segments)]
    assert set(whole["sizes"]) == {"[[64,32]]"}
    assert whole.loc["unfused", "plan_hash"] == plan.hash


def test_a_sweep_that_was_stopped_goes_on(tmp_path):
    swept = ours()
    seen = []

    def stop(done, total, task):
        seen.append((done, total, task.key))
        raise KeyboardInterrupt

    with fl.Ledger(tmp_path) as ledger:
        with pytest.raises(KeyboardInterrupt):
            swept.run(ledger, progress=stop)
        # A process that is killed between the rows of a task has written the first ones.
        (row, *_) = perform(swept.tasks[1])
        ledger.append(row)
        assert swept.run(ledger, progress=False).done == 2
        assert sorted(completed(swept, ledger)["task"]) == sorted(task.key for task in swept.tasks)
    assert seen == [(1, 3, swept.tasks[0].key)]


def test_times_and_schedules_are_swept(tmp_path):
    swept = fl.sweep(
        {"softmax": softmax()}, [(64, 32)], schedules=[None, {0: {"grain": 1}}, {7: {"grain": 1}}], device="cpu",
        seconds=0.01, peers={"softmax": {"mine": lambda x: x}},
    )
    with fl.Ledger(tmp_path) as ledger:
        result = swept.run(ledger, progress=False)
        rows = swept.to_pandas(ledger)
    assert [reason for _, reason in result.failures] == ["with_params: segment must be from 0 to 0, given 7."]
    plans = rows[rows["plan_hash"].fillna("") != ""]
    assert set(plans["plan"]) == {"bottom_up", "bottom_up S0[grain=1]"}
    assert (plans["median"] > 0).all()
    changed = plans[(plans["plan"] != "bottom_up") & plans["segment"].notna()].iloc[0]
    assert "set by hand: grain = 1" in changed["schedule"]
    peers = rows[rows["plan"] == "mine"]
    assert peers["note"].str.startswith("wrong results, not timed").all()
    assert peers["strategy"].isna().all()


def test_all_candidates_of_a_kernel_are_tasks():
    plain = fl.sweep({"softmax": softmax()}, [(64, 32)], device="cpu")
    candidates = fl.sweep({"softmax": softmax()}, [(64, 32)], device="cpu", schedules="candidates")
    assert candidates.tasks[0] == plain.tasks[0]
    assert len({task.schedule for task in candidates.tasks}) == len(candidates) > 3


def test_compiled_kernels_are_rows():
    (task,) = fl.sweep("softmax", work="compile", device="cpu").tasks
    first, whole = perform(task)
    assert first["kernel_hash"]
    assert whole["elapsed"] > 0


def test_what_is_no_sweep_is_refused():
    fd = softmax()
    for arguments, said in (
        (((), [(1, 1)]), "given tuple"), (([],), "at least one fusion"), (("softmaks",), "unknown example 'softmaks'"),
        ((fl.segment(fd, [fl.spec((4, 4))]),), "a plan is already cut"), ((fd, [7]), "a size must be a shape"),
        ((fd, {"other": [(1, 1)]}), "names the fusion 'other'; the fusions are fusion0"),
    ):
        with pytest.raises((InputError, ArgumentTypeError), match=said):
            fl.sweep(*arguments)
    for option, said in (
        ({"strategies": ["best"]}, "strategies"), ({"targets": ["H1000"]}, "unknown target 'H1000'"),
        ({"schedules": [{"a": {"grain": 1}}]}, "numbers of segments"),
        ({"schedules": [{0: {"gain": 1}}]}, "unknown parameter 'gain'"),
        ({"work": "measure"}, "work must be"), ({"peers": {"other": {}}}, "names the fusion 'other'"),
    ):
        with pytest.raises((InputError, ArgumentTypeError), match=said):
            fl.sweep(fd, [(4, 4)], **option)


def test_a_worker_of_another_version_says_so():
    (row,) = perform(ours().tasks[0], version="0.0")
    assert row["failure"].startswith("the sweep was created by fuser_lab 0.0, and this worker has ")


class Cluster:
    """A client of a cluster whose workers are (threads, resources, version or the exception that a request raises)."""

    def __init__(self, *workers):
        self.workers = {f"tcp://{place}": worker for place, worker in enumerate(workers)}

    def wait_for_workers(self, count, timeout):
        if len(self.workers) < count:
            raise TimeoutError

    def scheduler_info(self, n_workers):
        return {"workers": {a: {"nthreads": t, "resources": r} for a, (t, r, _) in self.workers.items()}}

    def run(self, function, *arguments, on_error):
        return {address: found for address, (_, _, found) in self.workers.items()}


def test_only_workers_that_can_do_the_tasks_get_them():
    ok = fl.__version__
    gpu, plain = (1, {"GPU": 1.0}, ok), (4, {}, ok)
    found = cluster.workers_of(Cluster(gpu, plain), "GPU")
    assert (found.measuring, found.others, found.left_out) == (("tcp://0",), ("tcp://1",), False)
    assert cluster.workers_of(Cluster(gpu, plain), "").others == ("tcp://1",)
    assert cluster.workers_of(Cluster(gpu), "").others == ("tcp://0",), "if there are no other workers"
    with pytest.warns(SweepWarning, match="tcp://1 is left out: fuser_lab is not installed"):
        assert cluster.workers_of(Cluster(plain, (1, {}, ModuleNotFoundError())), "").others == ("tcp://0",)
    with pytest.warns(SweepWarning), pytest.raises(InputError, match="none of the 1 workers .* fuser_lab 0.0"):
        cluster.workers_of(Cluster((1, {}, "0.0")), "")
    with pytest.raises(InputError, match="no worker has the resource GPU, .* one per GPU with `dask worker"):
        cluster.workers_of(Cluster(plain), "GPU")
    with pytest.raises(InputError, match="start tcp://0 with --nthreads 1"):
        cluster.workers_of(Cluster((4, {"CPU": 1.0}, ok)), "CPU")
    with pytest.raises(InputError, match="the cluster has no workers"):
        cluster.workers_of(Cluster(), "")


def test_without_dask_a_cluster_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'fuser_lab\[lab\]'"):
        ours().run(fl.Ledger(tmp_path), "tcp://127.0.0.1:1")
    assert ours().run(fl.Ledger(tmp_path), progress=False).done == 3


def test_a_file_is_swept_from_the_command_line(tmp_path, capsys, repository, monkeypatch):
    file = str(repository / "tests" / "data" / "sweep.toml")
    assert cli.main(["sweep", file, "--dry-run"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 24
    small = tmp_path / "small.toml"
    script = repository / "tests" / "data" / "sweep_softmax.py.txt"
    small.write_text(
        f'work = "segment"\nsizes = [[8, 8], [4]]\n[[fusions]]\nfile = {json.dumps(str(script))}\nname = "a"\n'
        '[[options]]\nforward_factories = ["full"]\n',
    )
    place = str(tmp_path / "runs")
    assert cli.main(["sweep", str(small), "--ledger", place]) == 1
    assert "1 of them failed" in capsys.readouterr().out
    assert cli.main(["sweep", str(small), "--ledger", place, "--again", "failed"]) == 1
    assert "1 task had already been done" in capsys.readouterr().out

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(sweeps, "perform", interrupted)
    assert cli.main(["sweep", str(small), "--ledger", str(tmp_path / "other")]) == 130
    assert "2 tasks left" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fusions = 1", "fusions must be tables"), ("[[fusions]]\nfile = 'none.py'", "No such file"),
        ("[[fusions]]\nexample = 'softmax'\nfile = 'a'", "either example or file"), ("wrok = 1", "unknown key 'wrok'"),
        ("[[fusions]]\nexample = 'softmax'\nsize = 1", "unknown key 'size' of a fusion"), ("[", "cannot be read"),
        ("options = [1]\n[[fusions]]\nexample = 'softmax'", "options must be tables"),
        ("[[fusions]]\nexample = 'softmax'\n[[fusions]]\nexample = 'softmax'", "two fusions are called 'softmax'"),
    ],
)
def test_a_file_that_describes_no_sweep_is_refused(tmp_path, text, said, capsys):
    file = tmp_path / "sweep.toml"
    file.write_text(text)
    assert cli.main(["sweep", str(file)]) == 2
    assert said in capsys.readouterr().err
