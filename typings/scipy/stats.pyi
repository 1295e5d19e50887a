from collections.abc import Sequence

class SignificanceResult:
    statistic: float

def spearmanr(a: Sequence[float], b: Sequence[float]) -> SignificanceResult: ...
