"""The text of the package, documents and lessons keeps to the language section of CONTRIBUTING."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

# What may not occur, and what to write instead.
PHRASES = {
    r"(?<![Tt]here )\b(?:is|are) no (?!more\b|longer\b)\w+(?=[.,;:)])": "negate the verb: is not a",
    r"\bpassed over\b": "skipped",
    r"\btaken for granted\b": "assumed",
    r"\banyhow\b": "anyway",
    r"\bmaybe\b": "possibly",
    r"\bdear(?:er|est)?\b": "expensive",
    r"\bat hand\b": "on chip, current or given",
    r"\bdoes not suffice\b": "not enough",
    r"\bwhoever\b": "name the part of the program",
    r"\banew\b": "again",
    r"\bif left out\b": "by default",
    r"\b(?:row|line|box|bar|column)s? an? (?:attempt|dump|input|op|plan|scheduler|segment|tensor)\b": "one per segment",
    r"\bturned in (?:shared|small)\b": "transposed",
    r"\bscheduler (?:itself )?(?:takes|would take)\b": "accepts",
    r"\bwhose limits decide\b": "the device to plan for",
    r"\bgo(?:es)? by (?:its|the|their)\b": "is decided by",
    r"\blasting\b": "persistent, monotone or relocatable",
    r"\blent\b": "borrowed, or aliased",
    r"\b(?:is|are) told\b": "receives, or is passed",
    r"\bis kept to\b": "holds, or is obeyed",
    r"\bis none of\b|\bnone of these[.,:]|\bnone of its own\b": "is not one of",
    r"\bwhat (?:is left|becomes) of\b": "the rest, or the results",
    r"\bin vain\b": "without result",
    r"\bsays? nothing of\b": "does not mention",
    r"\bnobody\b": "name the part of the program",
    r"\bstands? in for\b": "replaces",
    r"\bare (?:kept )?apart\b": "are separate",
    r"\bby turns\b": "alternately",
    r"\blet(?:s|ting)? go of\b": "release",
    r"\bof its own accord\b": "automatically",
    r"\bwhere(?:ver)? need be\b": "if necessary",
    r"\b(?:first|second)-level cache\b": "L1 cache, L2 cache",
    r"\bbytes an? (?:block|row|thread)\b": "bytes per block",
    r"\bper cent\b": "%",
}
FORBIDDEN = re.compile("|".join(f"(?:{phrase})" for phrase in PHRASES))


def prose_of_python(source: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of comments and of strings, with their numbers."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for number, line in enumerate(node.value.split("\n")):
                yield node.lineno + number, line


def prose(path: Path) -> Iterator[tuple[int, str]]:
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py" and path.parent.name != "notebooks":
        if FORBIDDEN.search(source):  # parsing all files takes seconds
            yield from prose_of_python(source)
    else:
        yield from enumerate(source.split("\n"), 1)


def texts(root: Path) -> Iterator[Path]:
    yield from (root / "README.md", *sorted((root / "docs").glob("*.md")))
    yield from sorted((root / "notebooks").glob("*.py"))
    yield from sorted((root / "fuser_lab").rglob("*.py"))
    yield from sorted((root / "widgets" / "fuser_lab_widgets").rglob("*.py"))


def found_in(path: Path) -> list[str]:
    return [f"{path.name}:{number}: {hit.group()}" for number, line in prose(path) if (hit := FORBIDDEN.search(line))]


def test_no_forbidden_phrase_occurs(repository):
    found = [one for path in texts(repository) for one in found_in(path)]
    assert not found, "\n".join([*found, "CONTRIBUTING.md, section Language, says what to write instead."])


@pytest.mark.parametrize(
    "text", ["T0 is no view, so", "Which runs whoever asks.", "The row stays at hand.", "Return one row a segment."],
)
def test_a_forbidden_phrase_is_found(text, tmp_path):
    path = tmp_path / "module.py"
    path.write_text(f'"""{text}"""\n', encoding="utf-8")
    assert found_in(path)


def test_usual_negations_are_allowed(tmp_path):
    path = tmp_path / "module.py"
    path.write_text("# There is no GPU; there is no view, and it is no longer a loop.\n", encoding="utf-8")
    assert not found_in(path)
