"""The generated pages of reasons, known answers, rules, passes and thresholds are up to date."""

import pytest

from fuser_lab.cost.reasons import ReasonCode
from tests.pages import agreement, known_answers, passes, reasons, thresholds
from tests.pages.rules import RULES
from tests.unit.segmentation.test_known_answers import CASES, GALLERY


def test_every_reason_has_an_example_and_a_remedy():
    assert set(reasons.EXAMPLES) == set(ReasonCode)
    for example in reasons.EXAMPLES.values():
        assert example.source
        assert example.remedy.endswith(".")


@pytest.mark.parametrize("code", ReasonCode, ids=lambda code: code.value)
def test_every_reason_is_given_in_its_example(code):
    said = reasons.found(code)
    assert said.text
    assert not set("{}") & set(said.text)


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("reasons", reasons), ("known_answers", known_answers), ("agreement", agreement), ("passes", passes),
        ("thresholds", thresholds),
    ],
)
def test_the_page_is_not_stale(name, page, repository):
    assert (repository / "docs" / f"{name}.md").read_text(encoding="utf-8") == page.page(), (
        f"docs/{name}.md is stale: {page.COMMAND}"
    )


def test_every_case_is_on_the_page(repository):
    page = (repository / "docs" / "known_answers.md").read_text(encoding="utf-8")
    for case in CASES:
        assert f"`{case['id']}`" in page
    assert "(NO)" not in page
    assert GALLERY


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.of}: {rule.text}"[:60])
def test_a_rule_names_code(rule):
    assert agreement.resolved(rule.ours) is not None


def test_asserted_rules_are_declared_and_their_cases_known():
    declared = {(agreement.name_of(rule), code) for rule in agreement.RULES for code in rule.reasons or (None,)}
    for name, cases in agreement.ASSERTED.items():
        assert {(name, code) for code in cases} <= declared
        assert set(cases.values()) <= set(agreement.BY_ID)


def test_the_readme_says_how_many_asserted_segmentations_agree(repository):
    count, good = agreement.compared()
    sentence = f"Of {count} segmentations that nvFuser's own tests assert, {good} agree"
    for name in ("README.md", "docs/agreement.md"):
        assert sentence in " ".join((repository / name).read_text(encoding="utf-8").split()), name
