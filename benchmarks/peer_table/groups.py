"""Records by method and kind, and which of them are a fair test."""

from collections.abc import Iterable

from peer_table import methods
from peer_table.keypoint_choices import STRONGEST
from peer_table.records import Record, joined

USUAL = 2048
"""Keypoints of the figures, and of what must hold."""
CHOSEN_ON = frozenset({"fountain", "castle", "monstree", "sceaux"})
"""Scenes that choices were checked on, of keypoints or of the training of `best`: no test for ours.

The validation sets of benchmarks/reproduce.py are cut from the last three.
"""


def label(word: str) -> str:
    """A method for people."""
    parsed = methods.parse(word)
    names = {"rootsift": "RootSIFT", "aliked": "ALIKED", "disk": "DISK"}
    name = names.get(parsed.features, parsed.features)
    keypoints = "" if parsed.keypoints == STRONGEST else f":{parsed.keypoints}"
    matcher = {"": "", methods.LIGHTGLUE: " + LightGlue", methods.LEARNED: " + learned matcher"}
    matched = matcher.get(parsed.matcher, f", ratio {parsed.matcher}")
    return f"{name}{keypoints}{matched}{', aligned' if parsed.aligned else ''}"


def of_kind(records: Iterable[Record], kind: str, keypoints: int | None = None) -> list[Record]:
    """Those of a kind, and of a number of keypoints if one is given."""
    return [one for one in records if one.kind == kind and keypoints in (None, one.keypoints)]


def by_method(records: Iterable[Record]) -> dict[str, list[Record]]:
    """In the order of the page: RootSIFT, ours, peers."""
    found: dict[str, list[Record]] = {}
    for one in records:
        found.setdefault(one.method, []).append(one)
    return dict(sorted(found.items(), key=lambda item: _place(item[0])))


def _place(word: str) -> tuple[int, str]:
    parsed = methods.parse(word)
    return (2 if methods.is_peer(parsed.features) else int(parsed.features != "rootsift")), word


def whole(records: Iterable[Record]) -> dict[str, Record]:
    """Methods on the scenes that they share, these as one; those with few scenes are left out.

    So a run that was stopped compares like with like.
    """
    found = by_method(records)
    most = max((len(each) for each in found.values()), default=0)
    ready = {word: each for word, each in found.items() if 3 * len(each) >= 2 * most}
    scenes = [{one.scene for one in each} for each in ready.values()]
    shared = set.intersection(*scenes) if scenes else set()
    return {
        word: joined([one for one in each if one.scene in shared])
        for word, each in ready.items()
        if shared
    }


def is_fair(one: Record) -> bool:
    """Whether a scene is new to a method: neither trained on nor, for ours, chosen on."""
    return is_new(one.scene, one.method)


def is_new(scene: str, word: str) -> bool:
    """The same by names."""
    features = methods.parse(word).features
    ours = features != "rootsift" and not methods.is_peer(features)
    return scene not in methods.trained_on(word) and not (ours and scene in CHOSEN_ON)
