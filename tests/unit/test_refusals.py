"""For any argument, a public function works, or quickly raises a FuserLabError with a short sentence."""

import contextlib
import functools
import io
import json

import pytest
import traitlets

import fuser_lab as fl
from fuser_lab import DataType
from fuser_lab.cli import commands as cli
from fuser_lab.contracts.commands import SKIP
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.errors import FuserLabError
from tests.unit import public_calls
from tests.unit.ops.sampling import ENTRIES, LETTERS
from tests.unit.public_calls import SLOWEST, WRONG, at_most
from tests.unit.public_names import EXCEPTIONS, public_names

# Wrong values of one class. `make test` passes one of each class to each argument of an op, and one of one class to
# each argument of another call; `make test-all` passes all.
CLASSES = (
    ("None", "True", "np.bool", "DataType", "enum"),
    ("1", "-1", "2**31", "np.int8", "NaT"),
    ("2**63", "10**400", "-10**400", "10**5000"),
    ("nan", "inf", "1e300", "0.5", "1j", "np.float64"),
    ("surrogate", "NUL", "long text", "empty text", "text", "bytes"),
    ("[]", "[None]", "[[]]", "[10**400]", "[nan, '\\udcff']", "(1, 2)", "{}", "{1: 2}", "set"),
    ("list in itself", "deep list", "dict in itself"),
    ("endless", "range(10**12)"),
    ("hostile", "object", "class", "function", "spec", "path"),
    ("array", "0-d array", "array of text", "array of objects"),
)
pytestmark = pytest.mark.filterwarnings("ignore")
LONGEST = 1000  # characters of a sentence about a single argument


def wrongly(call, args, kwargs, values=None):
    """Failures when wrong values replace each argument in turn: all values, or those selected by a number."""
    found = []
    for number, where in enumerate((*range(len(args)), *kwargs)):
        for label, make in (WRONG if values is None else values(number)).items():
            changed, named = list(args), dict(kwargs)
            (named if isinstance(where, str) else changed)[where] = make()
            try:
                with at_most(SLOWEST), contextlib.redirect_stdout(io.StringIO()):
                    call()(*changed, **named)
            except (FuserLabError, traitlets.TraitError) as error:
                text = str(error)
                if len(text) > LONGEST:
                    found.append(f"{where}={label}: {text[:80]!r} is no short sentence")
            except BaseException as error:  # noqa: BLE001 - what must not come out
                found.append(f"{where}={label}: {type(error).__name__}: {str(error)[:80]}")
    return found


def _turn(number, every=1):
    """One wrong value from a share of the classes, a different share for each number."""
    chosen = [labels[number % len(labels)] for labels in CLASSES[number % every::every]]
    return {label: WRONG[label] for label in chosen}


def test_every_wrong_value_is_of_one_class():
    assert sorted(label for labels in CLASSES for label in labels) == sorted(WRONG)


class _Noted:
    """The ops of a definition; records the arguments of each call."""

    def __init__(self, fd, name):
        self._fd, self._name, self.seen = fd, name, None

    def __getattr__(self, name):
        op = getattr(self._fd.ops, name)
        if name != self._name:
            return op

        def call(*args, **kwargs):
            self.seen = (args, kwargs)
            return op(*args, **kwargs)

        return call


class _Definition:
    def __init__(self, fd, name):
        self._fd, self.ops = fd, _Noted(fd, name)

    def __getattr__(self, name):
        return getattr(self._fd, name)


def _wrong_of_op(name, values=None):
    entry = ENTRIES[name]
    sample = entry.samples[0]
    fd = FusionBuilder().__enter__()
    noted = _Definition(fd, name)
    operands = {
        letter: fd.define_tensor(list(arg.shape), True, arg.dtype)
        for letter, arg in zip(LETTERS, sample.args, strict=False)
    }
    eval(sample.call, {"fd": noted, "DataType": DataType, **operands})
    args, kwargs = noted.ops.seen
    return wrongly(lambda: getattr(fd.ops, name), args, kwargs, values)


@pytest.mark.parametrize("name", ENTRIES)
def test_ops(name):
    first = sorted(ENTRIES).index(name)
    assert not _wrong_of_op(name, values=lambda number: _turn(first + number))


@pytest.mark.matrix
@pytest.mark.parametrize("name", ENTRIES)
def test_ops_with_every_value(name):
    assert not _wrong_of_op(name)


@pytest.fixture
def calls(tmp_path):
    # Created for each test, because some calls are legal only once with the same arguments.
    with contextlib.chdir(tmp_path), fl.use_tuned(False):
        yield public_calls.calls(public_calls.world(tmp_path))


def _few(first, number):
    return _turn(first + number, every=len(CLASSES))


def _wrong(calls, rotated):
    """The failures of each call, by name; an empty list is right."""
    found = {}
    for first, (name, call) in enumerate(calls.items()):
        call.make()(*call.args, **call.kwargs)
        values = functools.partial(_few, first) if rotated else None
        if wrong := wrongly(call.make, call.args, call.kwargs, values):
            found[name] = wrong
    return found


def test_calls(calls):
    assert not _wrong(calls, rotated=True)


@pytest.mark.matrix
def test_calls_with_every_value(calls):
    assert not _wrong(calls, rotated=False)


def test_every_public_function_is_called_or_an_exception(calls):
    public = public_names()
    tried = {id(public[name.partition(" ")[0]]) for name in calls if name.partition(" ")[0] in public}
    untried = {id(function): name for name, function in reversed(public.items()) if id(function) not in tried}
    assert set(untried.values()) == set(EXCEPTIONS)


@pytest.mark.parametrize("trait", [
    "plan", "strategy", "reading", "whole_fusion", "cut_reshape_inputs", "cut_resize_inputs", "selection", "running",
])
def test_traits_of_the_explorer(trait):
    explorer = fl.explore(public_calls.defined(), public_calls.INPUTS)
    try:
        assert not wrongly(lambda: lambda value: setattr(explorer, trait, value), (getattr(explorer, trait),), {})
    finally:
        explorer.close()


# Values passed to the commands in place of a file, an output, or the value of an option.
WORDS = (
    "", " ", "-1", "nan", "inf", "1e400", "9" * 5000, "0x10", "\udcff", "a\0b", "x" * 100_000, "..", "/", "/dev/null",
    "nowhere/at/all", "no.html/", "--", "-", "None", "[]", "best", "bottom_up,", "T2",
)
COMMANDS = {
    "examples": ["NAME"],
    "ops": ["NAME"],
    "explain": [
        "FILE", "--name", "--strategy", "--target", "--segment-set", "--states", "--seconds",
        "--certificate --states", "--certificate --seconds", "--inputs", "--init", "--device", "--output",
    ],
    "fit": ["FILE", "--plans", "--seconds", "--this-cpu --seconds"],
    "price": ["FILE", "--name", "--corpus", "--strategy", "--target", "--issue"],
    "agree": ["FILE", "--target"],
    "report": ["FILE", "--output", "--title", "--name", "--strategies", "--target", "--segment-set"],
    "sweep": ["FILE", "--ledger", "--scheduler", "--again"],
    "retime": ["FILE", "--below 1", "1 --below"],
    "lock": [
        "FILE", "--output", "--compiler", "--target", "--inputs", "--init", "--device", "--option",
    ],
    "check": ["FILE", "--target", "--inputs", "--init", "--device", "--option"],
    "bisect": ["FILE", "--between", "--between a", "--target", "--inputs", "--init", "--device", "--option"],
    "diff": ["FILE", "--name", "--strategies", "--target", "--segment-set"],
}


def test_commands_and_options_that_take_a_value_are_tried():
    for name, command in cli._parser()._subparsers._group_actions[0].choices.items():
        taking = {a.option_strings[-1] if a.option_strings else "FILE" for a in command._actions if a.nargs != 0}
        tried = {option.rpartition(" ")[2].replace("NAME", "FILE") for option in COMMANDS[name]}
        assert taking <= tried, name


@pytest.mark.parametrize(("command", "option"), [(name, option) for name, all_ in COMMANDS.items() for option in all_])
def test_commands(command, option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "script.py"
    script.write_text(public_calls.defined().repro_script_for(public_calls.INPUTS), encoding="utf-8")
    found = []
    for word in WORDS:
        monkeypatch.setattr("sys.stdin", io.StringIO("no script"))
        given = [word] if option in {"FILE", "NAME"} else [str(script), *option.split(), word]
        # As Python creates them: the error stream can write any character.
        errors = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
        output = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        try:
            with at_most(SLOWEST), contextlib.redirect_stderr(errors), contextlib.redirect_stdout(output):
                status = cli.main([command, *given])
        except BaseException as error:  # noqa: BLE001 - what must not come out
            found.append(f"{word[:20]!r}: {type(error).__name__}: {str(error)[:80]}")
            continue
        errors.seek(0)
        said = errors.read()
        said = said[said.find("fuser_lab: "):]  # without the usage line that argparse prints first
        if status not in {0, 1, 2, SKIP} or (status == 2 and not said and command != "agree") or (
            len(said) > LONGEST > len(word)
        ):
            found.append(f"{word[:20]!r}: status {status}, {said[:80]!r}")
    assert not found


def test_sizes_that_would_take_forever_are_refused():
    with fl.FusionDefinition() as fd:
        for size in (2**63, 10**6):
            with pytest.raises(FuserLabError, match="define_vector: size must be a whole number from 0 to 65,536"):
                fd.define_vector(size)
        with pytest.raises(FuserLabError, match="shape has 20000 entries; arrays have 64 axes at most"):
            fd.define_tensor([2] * 20_000)
        x = fd.define_tensor([2, 3], True)
        with pytest.raises(FuserLabError, match="broadcast_in_dim: shape has 20002 entries; arrays have 64 axes"):
            fd.ops.broadcast_in_dim(x, [2, 3] + [1] * 20_000, [0, 1])
        with pytest.raises(FuserLabError, match="broadcast: the result would have 65 axes; arrays have 64 at most"):
            fd.ops.broadcast(x, [False, False] + [True] * 63)


def _lists(value, at=()):
    """The places of the lists in JSON, starting with the whole document."""
    if isinstance(value, list):
        yield at
        for number, entry in enumerate(value):
            yield from _lists(entry, (*at, number))


def _saved(folder):
    """The saved form of a cache of one fusion, and the place of its broadcast's shape in it."""
    cache = fl.FusionCache()
    with fl.FusionDefinition(cache=cache) as fd:
        x = fd.define_tensor([2, 3], True)
        fd.add_output(fd.ops.broadcast_in_dim(x, [2, 3, 4], [0, 1]))
    data = json.loads(cache.save(folder / "cache.json").read_text())
    records = data["records"]
    shape = next(at for at in _lists(records) if _entry(records, at) == ["list", 2, 3, 4])
    return data, ("records", *shape)


def _entry(value, at):
    for number in at:
        value = value[number]
    return value


def _loaded(data, at, folder, entries=20_000):
    """Load a cache whose list at a given place has many more entries."""
    data = json.loads(json.dumps(data))
    there = _entry(data, at)
    there.extend(there[-1:] * entries)
    (folder / "grown.json").write_text(json.dumps(data))
    with at_most(SLOWEST):
        fl.FusionCache.load(folder / "grown.json")


def test_a_cache_file_with_a_list_of_20_000_entries_is_refused_soon(tmp_path):
    data, shape = _saved(tmp_path)
    with pytest.raises(FuserLabError, match="shape has 20003 entries; arrays have 64 axes at most"):
        _loaded(data, shape, tmp_path)
    with pytest.raises(FuserLabError, match="record 2 ends two fusions"):
        _loaded(data, ("fusions",), tmp_path)


@pytest.mark.matrix
def test_a_cache_file_with_any_list_of_20_000_entries_is_read_or_refused_soon(tmp_path):
    data, _ = _saved(tmp_path)
    for key in ("records", "fusions"):
        for at in _lists(data[key]):
            with contextlib.suppress(FuserLabError):
                _loaded(data, (key, *at), tmp_path)
