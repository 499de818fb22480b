"""Numbers of things in sentences."""


def counted(number: int, noun: str) -> str:
    """A number with thousands apart, and the noun behind it: "1 patch", "1,200 patches"."""
    return f"{number:,} {plural(noun, number)}"


def plural(noun: str, number: int) -> str:
    """The noun as it stands after a number."""
    if number == 1:
        return noun
    return f"{noun}es" if noun.endswith("ch") else f"{noun}s"
