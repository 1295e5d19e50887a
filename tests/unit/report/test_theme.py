import pytest

from fuser_lab.report import theme


def luminance(colour):
    """Relative luminance according to WCAG 2.2."""
    channels = (int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_measure_of_contrast_is_right():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize("colours", [theme._LIGHT, theme._DARK], ids=["light", "dark"])
def test_text_can_be_read_on_every_ground(colours):
    for text in ("ink", "muted", "accent", "good", "bad"):
        for ground in ("paper", "panel"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)


@pytest.mark.parametrize(
    ("hues", "colours"), [(theme.HUES_LIGHT, theme._LIGHT), (theme.HUES_DARK, theme._DARK)], ids=["light", "dark"],
)
def test_chips_carry_their_text_and_outlines_are_seen(hues, colours):
    assert len(set(hues)) == 8
    for hue in hues:
        assert contrast(hue, colours["paper"]) >= 4.0
