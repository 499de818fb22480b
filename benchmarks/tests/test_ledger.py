"""The ledger of training photographs: what is in it, and what it keeps out."""

import sys
from pathlib import Path

import numpy as np
import pytest
from ledger_files import ROWS, hashed, row, write_ledger, write_set
from PIL import Image

from kjax.cli import main
from kjax.data.phototour import SetPhotograph
from kjax.errors import InputError
from kjax.weights import shipped
from kjax.weights.ledger import OPEN_LICENCES, check_open, permitted_use

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "tools"))
import ledger as ledger_tool
from ledger import ledger_lines, make_ledger, scenes_digest, seal_folder, summarize


def test_the_shipped_ledger():
    """It is read, so its rows are whole, known and unique; here is what else must hold."""
    ledger = shipped.photographs()
    assert len(ledger) > 300
    assert list(ledger.values()) == ledger_lines(ledger), "in order"
    assert not [one for one in ledger.values() if " /" in f" {one.source}"], "no paths of a machine"
    for name in shipped.list_weights():
        assert {one.scene for one in shipped.card(name).photographs} <= {
            one.scene for one in ledger.values()
        }


def test_weights_for_research_say_so():
    for name in shipped.list_weights():
        if name.endswith("-research"):
            assert shipped.card(name).use.startswith("research: "), name


def test_licences_that_are_not_permissive_are_not_open():
    assert not [name for name in OPEN_LICENCES if "SA" in name or "NC" in name or "GPL" in name]


def test_photographs_of_the_shipped_ledger(shared_data):
    """The files themselves, where they are at hand."""
    from kjax.files.atomic import sha256

    ledger = shipped.photographs()
    for path in sorted((shared_data / "photos").glob("*/000.jpg")):
        assert ledger[sha256(path)].scene == path.parent.name


def test_the_command_tells_what_a_set_was_cut_from(folder, capsys):
    write_set(Path("sea"), "beach/0.jpg", "beach/2.jpg")
    write_set(Path("land"), "field/0.jpg")
    assert main(["ledger", "sea", "land", "--only-open"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "scene  photographs  licence    author",
        "beach  2            CC-BY-4.0  Ann; Bob",
        "field  1            CC0-1.0    unknown",
        "use: anything, also commercial; name Ann (CC-BY-4.0), Bob (CC-BY-4.0)",
    ]
    assert main(["ledger"]) == 0
    assert "tower  1            none-stated  Cy" in capsys.readouterr().out


def test_an_unknown_photograph_is_named(folder, capsys):
    write_set(Path("sea"), "beach/0.jpg", "holiday/me.jpg")
    assert main(["ledger", "sea"]) == 1
    told = capsys.readouterr()
    assert told.err == f"not in the ledger: holiday/me.jpg ({hashed('holiday/me.jpg')})\n"
    assert "use:" not in told.out


@pytest.mark.parametrize(
    ("photograph", "message"),
    [
        ("holiday/me.jpg", "sea: holiday/me.jpg is not in the ledger"),
        ("tower/0.jpg", "sea: tower/0.jpg (tower/0.jpg in the ledger) was published without a"),
    ],
)
def test_only_open_refuses(folder, capsys, photograph, message):
    write_set(Path("sea"), "beach/0.jpg", photograph)
    assert main(["ledger", "sea", "--only-open"]) == 2
    told = capsys.readouterr()
    assert message in told.err
    assert told.err.count("\n") == 1
    assert told.out == ""


def test_a_set_that_does_not_tell_is_refused(folder, capsys):
    write_set(Path("sea"), "beach/0.jpg")
    Path("sea/photographs.csv").unlink()
    for name, message in (
        ("sea", "cut the set again with kjax build-patches"),
        ("tfds:phototour/liberty", "does not tell"),
        ("nowhere", "no such folder: nowhere"),
    ):
        assert main(["ledger", name]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


def test_the_embedded_set_is_in_the_shipped_ledger(capsys):
    pytest.importorskip("skimage", reason="scikit-image is not installed")
    assert main(["ledger", "embedded"]) == 0
    assert "1 of 9 training photographs have no stated licence" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (ROWS[0]._replace(file="9.jpg"), r"beach/9\.jpg is in the ledger as beach/0\.jpg"),
        (ROWS[0]._replace(sha256="0" * 64), r"beach/0\.jpg is in the ledger with another content"),
        (row("sky", "0.jpg", "", "MIT"), r"0\.jpg has no author"),
        (row("sky", "0.jpg", "Di", " "), r"0\.jpg has no licence"),
        (row("sky", "0.jpg", "unknown", "MIT"), "MIT asks for the author's name"),
        (row("sky", "0.jpg", "Di", "CC-BY-NC-4.0"), "unknown licence 'CC-BY-NC-4.0'"),
        (row("sky", "0.jpg", "Di", "MIT")._replace(sha256="0"), "'0' is no SHA-256"),
    ],
)
def test_rows_that_will_not_do(folder, bad, message):
    with pytest.raises(InputError, match=message):
        make_ledger([*ROWS, bad])
    write_ledger(folder, [*ROWS, bad])
    with pytest.raises(InputError, match=message):
        shipped.photographs()


@pytest.mark.parametrize("text", ["", "sha256,scene\n", "\0"])
def test_a_damaged_ledger_is_refused(folder, text):
    (folder / "photographs.csv").write_text(text)
    with pytest.raises(InputError, match=r"photographs\.csv was altered.*reinstall kjax"):
        shipped.photographs()
    seal_folder()
    with pytest.raises(InputError, match=r"photographs\.csv is damaged"):
        shipped.photographs()


def test_a_check_sees_every_photograph():
    listed = [SetPhotograph(number, one.file, one.sha256) for number, one in enumerate(ROWS)]
    ledger = make_ledger(ROWS)
    check_open("all", listed[:4], ledger)
    with pytest.raises(InputError, match="without a licence"):
        check_open("all", listed, ledger)


def test_many_authors_are_in_the_card():
    some = [row("sky", f"{number}.jpg", f"author {number}", "MIT") for number in range(20)]
    assert permitted_use(summarize(some)) == (
        "anything, also commercial; name the 20 authors that the card lists"
    )
    assert permitted_use(summarize(ROWS[3:4])) == "anything, also commercial"
    assert (
        permitted_use(summarize(ROWS))
        == "research: 1 of 5 training photographs have no stated licence"
    )


def test_a_card_agrees_with_the_ledger():
    ledger = make_ledger(ROWS)
    told = summarize(ROWS[:2])
    digest = scenes_digest(told, ledger)
    check_told(told, digest, ledger)
    freed = make_ledger([*ROWS[:2], ROWS[2]._replace(licence="CC0-1.0"), *ROWS[3:]])
    with pytest.raises(InputError, match="not those of the ledger"):
        check_told(told, digest, freed)
    for change in ({"count": 4}, {"count": 0}, {"licence": "CC0-1.0"}, {"authors": ["Di"]}):
        (one,) = told
        with pytest.raises(InputError, match="knows no such photographs of beach"):
            check_told([type(one)(**vars(one) | change)], digest, ledger)


# The tool


def add(*paths, **changes):
    fields = {"scene": "sky", "source": "example.org", "author": "Di", "licence": "MIT"} | changes
    options = [word for name, text in fields.items() for word in (f"--{name}", text)]
    return ledger_tool.main(["add", *map(str, paths), *options])


def test_photographs_are_added(folder, capsys):
    Path("photos/deep").mkdir(parents=True)
    for name in ("photos/b.jpg", "photos/deep/a.png", "c.jpg"):
        Path(name).write_bytes(name.encode())
    assert add("photos", "c.jpg") == 0
    ledger = shipped.photographs()
    assert ledger[hashed("photos/deep/a.png")][1:] == (
        "sky", "deep/a.png", "example.org", "Di", "MIT",
    )  # fmt: skip
    assert [one.file for one in ledger_lines(ledger) if one.scene == "sky"] == [
        "b.jpg", "c.jpg", "deep/a.png",
    ]  # fmt: skip
    before = (folder / "photographs.csv").read_bytes()
    for bad, message in (
        ({}, "sky/b.jpg is in the ledger as sky/b.jpg: add it once"),
        ({"licence": "CC-BY-SA-4.0"}, "unknown licence"),
        ({"author": ""}, "has no author"),
    ):
        assert add("photos", **bad) == 2
        assert message in capsys.readouterr().err
    assert (folder / "photographs.csv").read_bytes() == before


def test_photographs_are_reduced_as_those_in_the_ledger(folder, capsys):
    Path("originals").mkdir()
    colours = np.random.default_rng(0).integers(0, 256, (20, 1600, 3), dtype=np.uint8)
    Image.fromarray(colours).save("originals/a b.png")
    assert ledger_tool.main(["reduce", "originals", "--out", "photos"]) == 0
    with Image.open("photos/a-b.jpg") as reduced:
        assert (reduced.mode, reduced.size) == ("L", (1536, 19))
    Path("originals/c.png").write_bytes(b"no picture")
    assert ledger_tool.main(["reduce", "originals", "--out", "photos"]) == 2
    assert "c.png cannot be read: leave it out" in capsys.readouterr().err


def test_an_edit_by_hand_must_be_sealed(folder, capsys):
    path = folder / "photographs.csv"
    path.write_text(path.read_text().replace("none-stated", "CC0-1.0"))
    with pytest.raises(InputError, match="was altered"):
        shipped.photographs()
    assert ledger_tool.main(["seal"]) == 0
    assert "0 cards, 5 photographs" in capsys.readouterr().out
    assert len(shipped.photographs()) == 5
