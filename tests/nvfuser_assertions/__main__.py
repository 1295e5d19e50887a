"""``python -m tests.nvfuser_assertions``: how many assertions of nvFuser's tests fuser_lab agrees with."""

from tests.nvfuser_assertions.assertion import files


def main() -> None:
    """Print the numbers of each file, the cases with another answer, and the assertions that cannot be expressed.

    An assertion is a line of nvFuser; it agrees if all its cases do, which are the parameters of its test.
    """
    columns = ("found", "expressible", "agree", "differ", "cases")
    print(f"{'file':56}", *columns)
    totals = [0] * len(columns)
    differences, left = [], []
    for file in files():
        answers = [(case, *case.answer()) for case in file.cases]
        apart = [(case, got) for case, agrees, got in answers if not agrees]
        expressible, differ = ({case.line for case, *_ in rows} for rows in (answers, apart))
        lines = sum(map(len, file.left.values()))
        counts = (len(expressible) + lines, len(expressible), len(expressible - differ), len(differ), len(answers))
        totals = [a + b for a, b in zip(totals, counts, strict=True)]
        print_row(file.file, counts, columns)
        differences += apart
        left += [(file.file, lines, reason) for reason, lines in file.left.items()]
    print_row("all", totals, columns)
    print("\nDiffer:")
    for case, got in differences:
        print(f"{case.source} {case.name}: expected {case.expected}; got {got}. {case.differs or 'NOT EXPLAINED.'}")
    print("\nNot expressible:")
    for file, lines, reason in left:
        print(f"{file}:{', '.join(map(str, lines))}: {reason}")


def print_row(name, counts, columns):
    print(f"{name:56}", *(f"{count:{len(column)}}" for count, column in zip(counts, columns, strict=True)))


if __name__ == "__main__":
    main()
