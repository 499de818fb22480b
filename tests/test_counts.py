"""Numbers of things in sentences."""

from kjax.counts import counted


def test_a_noun_follows_its_number():
    said = [counted(number, noun) for number in (0, 1, 1200) for noun in ("pair", "verified match")]
    assert said == [
        *("0 pairs", "0 verified matches"),
        *("1 pair", "1 verified match"),
        *("1,200 pairs", "1,200 verified matches"),
    ]
