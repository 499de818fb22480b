"""Weights, matchers, detectors and the ledger that ship with kjax.

`benchmarks/ship.py` writes NAME.npz, the card NAME.json, and NAME.md for people. SHA256SUMS holds
the hashes of all cards and of the ledger, and a card the hash of its weights. This detects damage
and careless edits. It is not a signature: whoever can write all of these files can make them agree.
"""

from pathlib import Path
from typing import Any

from kjax.errors import InputError, unknown_name
from kjax.files.atomic import CHECKSUMS, sha256
from kjax.files.json import parse_json
from kjax.weights.info import ModelInfo
from kjax.weights.ledger import LEDGER_FILE, Ledger, PhotoGroup, read_ledger

FOLDER = Path(__file__).parent / "trained"
MATCHERS = "matchers"
"""Subfolder of learned matchers, named after the weights whose descriptors they match."""
DETECTORS = "detectors"
"""Subfolder of learned detectors."""
DEFAULT = "best"
"""Default weights of commands and `kjax.load`."""
PREFIX = "kjax-"
"""Optional prefix of a name, which distinguishes kjax-hardnet from the baseline hardnet."""
CONTEXT = "-context"
"""Suffix of weights with context, after the name of their one-patch counterpart."""
DEFAULT_RATIO = 0.9
"""Maximum distance ratio of matches for weights without a default of their own."""
METRICS = {"fpr95": "FPR@95", "hpatches": "HPatches mAP"}
"""Names of metrics for people, by the first part of their names in cards."""


def list_weights() -> list[str]:
    """Names of the shipped weights."""
    return _names(".")


def list_matchers() -> list[str]:
    """Names of the shipped matchers."""
    return _names(MATCHERS)


def matcher_for(weights: str, detector: str | None = None) -> str:
    """Return the name of the matcher for weights at a detector's keypoints, or at SIFT's."""
    own = f"{weights}-{detector}"
    return own if own in list_matchers() else weights


def list_detectors() -> list[str]:
    """Names of the shipped detectors."""
    return _names(DETECTORS)


def _names(folder: str) -> list[str]:
    return sorted(path.stem for path in (FOLDER / folder).glob("*.json"))


def find(name: str) -> str | None:
    """Return the shipped name of weights, without `PREFIX`; None if there is none."""
    name = name.removeprefix(PREFIX)
    return name if name in list_weights() else None


def card(name: str) -> ModelInfo:
    """Read the card of shipped weights."""
    found = find(name)
    if found is None:
        raise unknown_name("pretrained model", name, list_weights())
    return _read_card(FOLDER / f"{found}.json")


def matcher_card(name: str) -> ModelInfo:
    """Read the card of a shipped matcher."""
    return _part_card(MATCHERS, name)


def detector_card(name: str) -> ModelInfo:
    """Read the card of a shipped detector."""
    return _part_card(DETECTORS, name)


def _part_card(folder: str, name: str) -> ModelInfo:
    if name not in (known := _names(folder)):
        raise unknown_name(folder.removesuffix("s"), name, known)
    return _read_card(FOLDER / folder / f"{name}.json")


def no_surroundings(name: str) -> InputError:
    """Return the error of a model with context that is given patches alone."""
    one_patch = find(name.removesuffix(CONTEXT)) or DEFAULT
    return InputError(
        f"{name} describes points with their surroundings, which these patches lack: use "
        f"{one_patch.removesuffix(CONTEXT)}, or describe_image"
    )


def weights_file(info: ModelInfo, folder: str = ".") -> Path:
    """Return the weights file of a card, after comparing its SHA-256."""
    path = FOLDER / folder / f"{info.name}.npz"
    if not path.is_file() or sha256(path) != info.sha256:
        raise InputError(f"{path} is missing or was altered: reinstall kjax")
    return path


def matcher_file(name: str) -> Path:
    """Return the weights file of a shipped matcher, after comparing its SHA-256."""
    return weights_file(matcher_card(name), MATCHERS)


def detector_file(name: str) -> Path:
    """Return the weights file of a shipped detector, after comparing its SHA-256."""
    return weights_file(detector_card(name), DETECTORS)


def photographs() -> Ledger:
    """Read the ledger of all training photographs."""
    _check_unaltered(FOLDER / LEDGER_FILE)
    return read_ledger(FOLDER / LEDGER_FILE)


def readable_results(results: dict[str, float | str]) -> dict[str, str]:
    """Return a card's metrics as people write them, e.g. "FPR@95, liberty" and "1.23 %"."""
    texts = {}
    for metric, value in results.items():
        family, *rest = metric.split("/")
        label = ", ".join([METRICS.get(family, family), *rest])
        texts[label] = value if isinstance(value, str) else f"{100 * value:.2f} %"
    return texts


def _read_card(path: Path) -> ModelInfo:
    _check_unaltered(path)
    try:
        return _make_info(parse_json(path.read_bytes()))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise InputError(f"{path} is damaged ({error!r}): reinstall kjax") from None


def _make_info(values: dict[str, Any]) -> ModelInfo:
    groups = tuple(PhotoGroup(**group) for group in values["photographs"])
    info = ModelInfo(
        model={
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.get("model", {}).items()
        },
        name=values["name"],
        extent=values.get("extent"),
        ratio=values.get("ratio", DEFAULT_RATIO) if "model" in values else None,
        nested=tuple(values.get("nested", ())),
        train_sets=tuple(one["name"] for one in values.get("data", ())),
        summary=values["summary"],
        photographs=groups,
        sha256=values["sha256"],
    )
    count = sum(group.count for group in groups)
    training = [f"{values['pairs']:,} pairs from {count} photographs", info.model.get("dtype")]
    scores: dict[str, list[str]] = {}
    for label, text in readable_results(values["results"]).items():
        family, _, task = label.rpartition(", ")
        scores.setdefault(family.removesuffix(", python"), []).append(f"{task} {text}")
    info.remarks.update(
        {
            "licence": values["licence"],
            "use": info.use,
            "training": ", ".join(filter(None, [*training, values["hardware"]])),
            "score": "; ".join(
                ": ".join(filter(None, (family, ", ".join(texts))))
                for family, texts in scores.items()
            ),
            **({"sets": ", ".join(info.train_sets)} if info.train_sets else {}),
            "seed": str(values["seed"]),
            **{label: values[label] for label in ("command", "commit")},
            "evaluated": values["evaluation"],
            "limits": "; ".join(values["limits"]),
            "photographs": "; ".join(
                f"{one.scene}: {one.count}, {', '.join(one.authors)}, {one.licence}"
                for one in groups
            ),
            "sha256 of npz": info.sha256,
        }
    )
    return info


def _check_unaltered(path: Path) -> None:
    """Raise if a card or the ledger is not what was shipped."""
    try:
        sums = (FOLDER / CHECKSUMS).read_text(encoding="utf-8").splitlines()
        line = f"{sha256(path)}  {path.relative_to(FOLDER)}"
    except (ValueError, OSError):
        raise InputError(f"{path} or {CHECKSUMS} is damaged or missing: reinstall kjax") from None
    if line not in sums:
        raise InputError(f"{path} was altered (it is not in {CHECKSUMS}): reinstall kjax")
