"""The text of the packages, documents, lessons and tests follows the language section of CONTRIBUTING."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

# What may not occur, from the beginning of a word, and what to write instead.
PHRASES = {
    r"(?<![Tt]here )(?:is|are) no (?!more\b|longer\b)\w+(?=[.,;:)])": "negate the verb: is not a",
    r"passed over\b": "skipped",
    r"taken for granted\b": "assumed",
    r"anyhow\b": "anyway",
    r"maybe\b": "possibly",
    r"dear(?:er|est)?\b": "expensive",
    r"at hand\b": "on chip, current or given",
    r"does not suffice\b": "not enough",
    r"whoever\b": "name the part of the program",
    r"anew\b": "again",
    r"if left out\b": "by default",
    r"(?:row|line|box|bar|column)s? an? (?:attempt|dump|input|op|plan|scheduler|segment|tensor)\b": "one per segment",
    r"turned in (?:shared|small)\b": "transposed",
    r"scheduler (?:itself )?(?:takes|would take)\b": "accepts",
    r"whose limits decide\b": "the device to plan for",
    r"go(?:es)? by (?:its|the|their)\b": "is decided by",
    r"lasting\b": "persistent, monotone or relocatable",
    r"lent\b": "borrowed, or aliased",
    r"(?:is|are) told\b": "receives, or is passed",
    r"is kept to\b": "holds, or is obeyed",
    r"is none of\b|none of these[.,:]|none of its own\b": "is not one of",
    r"what (?:is left|becomes) of\b": "the rest, or the results",
    r"in vain\b": "without result",
    r"says? nothing of\b": "does not mention",
    r"nobody\b": "name the part of the program",
    r"stands? in for\b": "replaces",
    r"are (?:kept )?apart\b": "are separate",
    r"by turns\b": "alternately",
    r"let(?:s|ting)? go of\b": "release",
    r"of its own accord\b": "automatically",
    r"where(?:ver)? need be\b": "if necessary",
    r"(?:first|second)-level cache\b": "L1 cache, L2 cache",
    r"bytes an? (?:block|row|thread)\b": "bytes per block",
    r"per cent\b": "%",
    r"(?:process|thread|module|interpreter) of (?:its|their) own\b": "separate",
    r"(?:for|in|of) so many (?:blocks|bytes|elements|threads)\b": "this many",
}
FORBIDDEN = re.compile(rf"\b(?:{'|'.join(PHRASES)})")


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
    if path.suffix == ".py" and path.parent.name != "text":
        if FORBIDDEN.search(source):  # parsing all files takes seconds
            yield from prose_of_python(source)
    else:
        yield from enumerate(source.split("\n"), 1)


def texts(root: Path) -> Iterator[Path]:
    yield from (root / "README.md", *sorted((root / "docs").glob("*.md")))
    yield from sorted((root / "fuser_lab").rglob("*.py"))
    yield from sorted((root / "widgets" / "fuser_lab_widgets").rglob("*.py"))
    yield from (path for path in sorted((root / "widgets" / "js").glob("**/*.*js")) if "node_modules" not in path.parts)
    yield from (path for path in sorted((root / "tests").rglob("*.py")) if path != Path(__file__).resolve())


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
