"""``python -m tests.nvfuser_assertions``: how many assertions of nvFuser's tests fuser_lab agrees with."""

from tests.nvfuser_assertions.assertion import files


def main() -> None:
    """Print the numbers of each file, the assertions with another answer, and those that cannot be expressed."""
    print(f"{'file':48} found expressible agree differ")
    totals = [0, 0, 0, 0]
    differences, left = [], []
    for file in files():
        answers = [(case, *case.answer()) for case in file.cases]
        apart = [answer for answer in answers if not answer[1]]
        lines = sum(map(len, file.left.values()))
        numbers = [len(answers) + lines, len(answers), len(answers) - len(apart), len(apart)]
        totals = [a + b for a, b in zip(totals, numbers, strict=True)]
        print(f"{file.file:48} {numbers[0]:5} {numbers[1]:11} {numbers[2]:5} {numbers[3]:6}")
        differences += apart
        left += [(file.file, lines, reason) for reason, lines in file.left.items()]
    print(f"{'all':48} {totals[0]:5} {totals[1]:11} {totals[2]:5} {totals[3]:6}")
    print("\nDiffer:")
    for case, _, got in differences:
        print(f"{case.source} {case.name}: expected {case.expected}; got {got}. {case.differs or 'NOT EXPLAINED.'}")
    print("\nNot expressible:")
    for file, lines, reason in left:
        print(f"{file}:{', '.join(map(str, lines))}: {reason}")


if __name__ == "__main__":
    main()
