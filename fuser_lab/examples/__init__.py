"""Real fusions with real and small sizes, each with an independent float64 evaluation."""

from fuser_lab.arguments import TEXT, short_text, takes
from fuser_lab.errors import InputError
from fuser_lab.examples import normalization, pointwise, reshapes, rope
from fuser_lab.examples.example import Example

ALL: tuple[Example, ...] = (
    pointwise.SUM_BROADCAST_ADD,
    pointwise.BIAS_GELU,
    pointwise.SILU_MUL,
    normalization.SOFTMAX,
    normalization.SOFTMAX_BACKWARD,
    normalization.LAYER_NORM,
    normalization.LAYER_NORM_BACKWARD,
    normalization.RMS_NORM,
    normalization.RMS_NORM_BACKWARD,
    normalization.DROPOUT_ADD_LAYER_NORM,
    rope.ROPE_BACKWARD,
    reshapes.RESHAPE_DECIDES,
)


def names() -> list[str]:
    """Return the names of all examples."""
    return [example.name for example in ALL]


@takes("examples.get", name=TEXT)
def get(name: str) -> Example:
    """Return the example called ``name``.

    Raises
    ------
    InputError
        If there is none.
    """
    for example in ALL:
        if example.name == name:
            return example
    raise InputError(f"unknown example {short_text(name)}; choose from {', '.join(names())}.")


__all__ = ["ALL", "Example", "get", "names"]
