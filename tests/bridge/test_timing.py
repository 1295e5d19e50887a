"""``fl.time`` of a captured model: rows, equal regions, ratios within groups, unavailable peers."""

import json

import pytest
from needs import needs

import fuser_lab as fl
from fuser_lab.errors import InputError

torch = needs("torch")


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        return torch.tanh(self.linear(x)) * 2


@pytest.fixture(scope="module")
def found():
    torch._dynamo.reset()
    return fl.from_torch(torch.nn.Sequential(Layer(), Layer()), torch.randn(4, 8), backward=True)


def test_the_model_and_each_different_region_beside_its_peers(found, tmp_path):
    @torch._dynamo.register_backend(name="without_a_compiler")
    def refused(gm, inputs):
        msg = "InvalidCxxCompiler: No working C++ compiler found in torch._inductor.config.cpp.cxx: (None, 'g++')"
        raise RuntimeError(msg)

    told = []
    peers = ["eager", "without_a_compiler"]
    times = fl.time(found, peers=peers, seconds=0.002, progress=lambda done, total, _: told.append((done, total)))
    groups = list(dict.fromkeys(row.group for row in times.rows))
    assert groups[0] == "model"
    assert groups[1].startswith("regions[0] × 2")
    assert len(groups) == 1 + len({region.signature for region in found.regions})
    for group in groups:
        ours, eager, refused_row = (row for row in times.rows if row.group == group)
        assert (ours.plan, eager.plan) == (f"{group}: fuser_lab", f"{group}: eager")
        assert ours.ratio == 1
        assert eager.ratio == pytest.approx(eager.median / ours.median)
        assert ours.samples >= 5
        assert group == "model" or ours.error < 1
        assert "without_a_compiler needs a C++ compiler" in refused_row.note
        assert refused_row.samples == 0
    assert told[-1] == (told[-1][1],) * 2
    assert "Each run allocates its outputs." in " ".join(str(times).split())
    saved = json.loads(times.save(tmp_path / "times.json").read_text())
    assert "regions[0]" in json.dumps(saved)
    parameters = list(found.source.function.parameters())
    assert all(p.grad is None for p in parameters)


def test_sums_that_cancel_are_as_exact_as_torchs():
    torch.manual_seed(0)
    model = torch.nn.Softmax(-1)
    found = fl.from_torch(model, torch.randn(32, 64, requires_grad=True), backward=True)
    times = fl.time(found, peers=["eager"], seconds=0.001)  # the gradient of a row's sum, which is 1, is 0
    assert [row.note for row in times.rows] == [""] * len(times.rows)


def test_what_cannot_be_timed(found):
    with pytest.raises(InputError, match="time: unknown peer 'tensorrt9'; choose from eager, inductor, aot_eager"):
        fl.time(found, peers=["eager", "tensorrt9"])
    with pytest.raises(InputError, match="time: peers of a captured model are names, as .* given a dict"):
        fl.time(found, peers={"eager": torch.tanh})
    with torch.device("meta"):
        meta = fl.from_torch(torch.nn.LayerNorm(8), torch.randn(3, 8))
    with pytest.raises(InputError, match=r"tensors on the device 'meta' cannot run; .*fl\.time\("):
        fl.time(meta)
    with pytest.raises(InputError, match=r"plans are timed with inputs: time\(plans, inputs\)"):
        fl.time(found.regions[0].plan)
    with pytest.raises(InputError, match="peers of plans are functions by name"):
        fl.time(found.regions[0].plan, [], peers=["eager"])
