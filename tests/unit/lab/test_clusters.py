"""Sweeps on a cluster of two processes: every row arrives once, even if processes are stopped or killed."""

import os
import pkgutil
import signal

import pytest

import fuser_lab as fl
from fuser_lab.errors import InputError
from fuser_lab.lab import cluster as clusters

distributed = pytest.importorskip("distributed", reason="the lab packages are not installed")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


@pytest.fixture(scope="module")
def client():
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=":0",
            resources={"CPU": 1},
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


def ours(name, count=8, **more):
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.sum(fd.ops.exp(x), [1]))
    return fl.sweep({"sum": fd}, [(8, 8 + n) for n in range(count)], **{"work": "certificate", "name": name, **more})


def completed(sweep, ledger):
    rows = sweep.to_pandas(ledger)
    return sorted(rows["task"][rows["elapsed"].notna()])


def keys(sweep):
    return sorted(task.key for task in sweep.tasks)


def test_a_cluster_gives_the_rows_of_one_process(client, tmp_path):
    swept = ours("same")
    columns = ["subject", "sizes", "strategy", "target", "segment", "scheduler", "cost", "bound", "plan_hash"]
    found = []
    for folder, where in (("cluster", client), ("here", None)):
        with fl.Ledger(tmp_path / folder) as ledger:
            assert swept.run(ledger, where, progress=False).done == len(swept)
            rows = swept.to_pandas(ledger).sort_values(["sizes", "segment"])
            found.append(rows[columns].reset_index(drop=True).astype(str))
    assert found[0].equals(found[1])


def test_a_stopped_sweep_goes_on(client, tmp_path):
    swept = ours("stopped")

    def stop(done, total, task):
        if done == 3:
            raise KeyboardInterrupt

    with fl.Ledger(tmp_path) as ledger:
        with pytest.raises(KeyboardInterrupt):
            swept.run(ledger, client, progress=stop)
        assert swept.run(ledger, client, progress=False).kept == 3
        assert completed(swept, ledger) == keys(swept)


def test_a_worker_that_is_killed_costs_nothing_but_time(client, tmp_path):
    swept = ours("killed", 12)
    killed = []

    def kill(done, total, task):
        if done == 2:
            pid = next(iter(client.run(os.getpid).values()))
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    with fl.Ledger(tmp_path) as ledger:
        result = swept.run(ledger, client, progress=kill)
        assert completed(swept, ledger) == keys(swept)
    assert killed
    assert not result.failures


def test_measurements_take_the_resource(client, tmp_path):
    swept = ours("timed", 1, work="time", device="cpu", seconds=0.01, peers={"numpy": max})
    with fl.Ledger(tmp_path) as ledger:
        result = swept.run(ledger, client, progress=False)
        rows = swept.to_pandas(ledger)
        assert completed(swept, ledger) == keys(swept)
        with pytest.raises(InputError, match="no worker has the resource GPU"):
            ours("timed", 1, work="time", device="cuda").run(ledger, client)
    assert not result.failures
    assert (rows["median"][rows["plan"] == "bottom_up"] > 0).all()
    assert set(rows["plan"]) == {"bottom_up", "numpy"}


def test_what_a_worker_cannot_do_is_a_row(client, tmp_path, monkeypatch):
    def broken(task, peers, run, version):
        raise ValueError(task.subject)

    monkeypatch.setattr(clusters, "perform", broken)
    swept = ours("broken", 2)
    with fl.Ledger(tmp_path) as ledger:
        result = swept.run(ledger, client, progress=False)
        assert completed(swept, ledger) == keys(swept)
    assert [reason for _, reason in result.failures] == ["ValueError: sum"] * 2
    # As workers_of requests the version.
    for found in client.run(pkgutil.resolve_name, "no_such_package:__version__", on_error="return").values():
        assert clusters._refusal(found) == "fuser_lab is not installed"


def test_a_task_that_fails_takes_none_of_those_sent_with_it(client, tmp_path, monkeypatch):
    swept, perform = ours("together", 24), clusters.perform
    bad = swept.tasks[-9].key

    def broken(task, peers, run, version):
        if task.key == bad:
            raise ValueError(task.subject)
        return perform(task, peers, run=run, version=version)

    sent, parts = [], clusters._parts

    def short(tasks, threads, spent):
        sent.extend(parts(tasks, threads, [0.01]))  # however long they take on a busy machine
        return sent

    monkeypatch.setattr(clusters, "perform", broken)
    monkeypatch.setattr(clusters, "_parts", short)
    with fl.Ledger(tmp_path) as ledger:
        result = swept.run(ledger, client, progress=False)
        assert completed(swept, ledger) == keys(swept)
    assert any(len(part) > 1 and bad in [task.key for task in part] for part in sent)
    assert [(task.key, reason) for task, reason in result.failures] == [(bad, "ValueError: sum")]


@pytest.mark.parametrize(("spent", "largest"), [([], 1), ([0.01], 25), ([2.0], 1), ([1e-5], 32)])
def test_short_tasks_are_sent_together(spent, largest):
    tasks = ours("parts", 200).tasks
    parts = clusters._parts(tasks, 2, spent)
    assert [task for part in parts for task in part] == list(tasks)
    sizes = [len(part) for part in parts]
    assert sizes == sorted(sizes, reverse=True)
    assert (sizes[0], sizes[-1]) == (largest, 1)


def test_an_address_that_does_not_answer(tmp_path, monkeypatch):
    monkeypatch.setattr(clusters, "_PATIENCE", 0.2)
    with pytest.raises(InputError, match=r"cannot connect to tcp://127\.0\.0\.1:9: no scheduler answers there within"):
        ours("lost").run(fl.Ledger(tmp_path), "tcp://127.0.0.1:9")


@pytest.mark.parametrize(("address", "why"), [
    ("nonsense", "missing port number in address 'nonsense'"), ("nowhere://127.0.0.1:9", "unknown address scheme"),
])
def test_what_is_no_address_is_refused_at_once(address, why, tmp_path, monkeypatch):
    monkeypatch.setattr("distributed.Client.__init__", None)  # it is not even created
    with pytest.raises(InputError, match=f"cannot connect to {address}: {why}"):
        ours("lost").run(fl.Ledger(tmp_path), address)


def test_a_task_that_ends_its_workers_is_a_failure():
    error = distributed.scheduler.KilledWorker("task", None, 3)
    assert clusters._sentence((type(error), error, None)) == "4 workers died while running the task."
    assert "later cannot import the package: no x" in clusters._sentence(ModuleNotFoundError("no x"))
    assert clusters._sentence(ValueError("a\nb")) == "ValueError: a b"
