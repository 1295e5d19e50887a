"""Whatever a public function is given: it works, or it raises a FuserLabError with a short sentence, and soon."""

import contextlib
import io

import pytest

import fuser_lab as fl
from fuser_lab import DataType
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.errors import FuserLabError
from tests.unit import public_calls
from tests.unit.ops.sampling import ENTRIES, LETTERS
from tests.unit.public_calls import SLOWEST, WRONG, at_most

# Calls of `public_calls` that are tried; of the others it is not yet known that they refuse every wrong value.
TRIED = (
    "diff", "example", "examples.get", "load_repro", "with_rule", "FusionCache", "Device", "FusionCache.schedules",
    "FusionCache.load", "FusionCache.save", "Plan.cut", "Plan.glue", "Plan.move", "Plan.why", "Plan.renamed",
    "Plan.prepared", "Plan.certificate", "Plan.save", "Plan.run", "Segment.source", "Segment.kernel",
    "Segment.params", "SegmenterOptions.from_nvfuser", "spec", "DecisionLog", "DecisionLog.filter",
    "DecisionLog.about", "DecisionLog.append", "DecisionLog.from_json", "get_output_stride_order", "handle",
)
LONGEST = 1000  # characters of a sentence about a single argument


def wrongly(call, args, kwargs):
    """What goes wrong where each argument in turn is replaced by each wrong value."""
    found = []
    for where in (*range(len(args)), *kwargs):
        for label, make in WRONG.items():
            changed, named = list(args), dict(kwargs)
            (named if isinstance(where, str) else changed)[where] = make()
            try:
                with at_most(SLOWEST), contextlib.redirect_stdout(io.StringIO()):
                    call()(*changed, **named)
            except FuserLabError as error:
                text = str(error)
                if len(text) > LONGEST and label != "long text":
                    found.append(f"{where}={label}: {text[:80]!r} is no short sentence")
            except BaseException as error:  # noqa: BLE001 - what must not come out
                found.append(f"{where}={label}: {type(error).__name__}: {str(error)[:80]}")
    return found


class _Noted:
    """The ops of a definition; notes the arguments that one of them is called with."""

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


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize("name", ENTRIES)
def test_ops(name):
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
    assert not wrongly(lambda: getattr(fd.ops, name), args, kwargs)


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refusals")
    with contextlib.chdir(folder):
        yield public_calls.calls(public_calls.world(folder))


@pytest.mark.parametrize("name", TRIED)
def test_calls(calls, name):
    call = calls[name]
    call.make()(*call.args, **call.kwargs)
    assert not wrongly(call.make, call.args, call.kwargs)


def test_sizes_that_would_take_forever_are_refused():
    with fl.FusionDefinition() as fd:
        for size in (2**63, 10**6):
            with pytest.raises(FuserLabError, match="define_vector: size must be a whole number from 0 to 65,536"):
                fd.define_vector(size)
        with pytest.raises(FuserLabError, match="shape has 20000 entries; arrays have 64 axes at most"):
            fd.define_tensor([2] * 20_000)
