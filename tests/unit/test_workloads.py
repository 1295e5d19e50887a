"""The second set of workloads: no result depends on rounding, so any deviation is an error."""

from needs import needs

from tests.benchmarks.second import SECOND

SMALL = 64  # a sixty-fourth of the elements


def test_no_rounding_decides_the_step_of_adam():
    torch = needs("torch")
    load = next(one for one in SECOND if one.name == "adam").at(SMALL)
    weight, m, v, grad = (t.double() for t in load.inputs())
    v.requires_grad_(True)
    step = load.torch(weight, m, v, grad)[0]
    step.sum().backward()
    change = (v.grad * v.detach()).abs().max() * torch.finfo(torch.float32).eps  # by one rounding of the second moment
    assert float(change / step.detach().abs().max()) < 1e-4, "a tenth of the tolerance"
