"""Every kernel form of `tests/forms` on a device, twice, compared with the reference evaluation."""

import warnings
from contextlib import suppress

import pytest
from gpu.kinds import placed, twice

from fuser_lab.errors import EvaluationWarning
from tests import agreement
from tests.forms.check import Refused, compare, made
from tests.forms.corpus import read
from tests.forms.form import Form
from tests.forms.trace import Untraced

# Of the elements that a scatter writes at one position, any may win.
FORMS = [
    (n, form) for n, form in enumerate(read())
    if form.target == "cuda" and not form.actions and not any("scatter(" in call for _, call in form.calls)
]

pytestmark = pytest.mark.gpu


# Casts of complex numbers warn, as does torch about expanded arrays, which are not writable.
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning", "ignore:The given NumPy array:UserWarning")
@pytest.mark.parametrize("form", [pytest.param(form, id=f"form {n}") for n, form in FORMS])
def test_form(form: Form) -> None:
    found = made(form, Untraced())
    if found.refusal or found.plan is None:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EvaluationWarning)
        got = twice(found.plan.prepare("cuda"), placed(agreement.seeded(found.fusion, found.inputs), "cuda"))
    with suppress(Refused):  # the reference refuses positions out of range, which kernels need not
        compare(found, agreement.visible(found.fusion, found.fusion.outputs), got, "on a device")
