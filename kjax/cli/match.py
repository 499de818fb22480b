"""`kjax match`: match two photographs; draw the matches or save them."""

import argparse
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kjax.cli import options
from kjax.cli.options import HDF5, add_option, path_ending, positive
from kjax.errors import InputError, counted
from kjax.extras import require

if TYPE_CHECKING:
    from kjax.data.colmap import Camera
    from kjax.images.geometry import Verified
    from kjax.images.poses import RelativePose

HELP = "match two photographs and draw the matches that agree with one geometry"
EXAMPLES = """examples:
  kjax match a.jpg b.jpg
  kjax match a.jpg b.jpg --weights out/first --out matches.png
  kjax match a.jpg b.jpg --out matches.html           # interactive: zoom, hover, filter by score
  kjax match a.jpg b.jpg --save matches.npz           # or .h5, for hloc
  kjax match a.jpg b.jpg --matcher learned            # with the matcher of the weights
  kjax match day.jpg night.jpg --upright              # photographs that are not turned
  kjax match a.jpg b.jpg --weights hardnet.pth --geometry fundamental --matcher ratio --ratio 0.9
  kjax match a.jpg b.jpg --align --geometry fundamental --threshold 1
  kjax match a.jpg b.jpg --geometry essential --focal 1200      # where the second camera is

The exit code is 1 if there are no matches, or none that agree with one geometry. The picture then
shows the photographs alone. An .html page and a saved file always hold all matches.
"""
PAGE = ".html"
METHODS = ("nearest", "mutual", "ratio", "mutual_ratio", "learned")
GEOMETRIES = {
    "auto": "geometry",
    "homography": "homography",
    "fundamental": "epipolar geometry",
    "essential": "relative pose",
}
"""Choices of --geometry, with their names in messages."""
WAYS = {
    "oriented": "",
    "upright": " (upright keypoints)",
    "context": " (upright keypoints with their surroundings)",
    "aside": " (seen from aside)",
}
"""Remarks in messages on how the geometry was found."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    advanced = parser.add_argument_group("advanced options")
    parser.add_argument("first", metavar="IMAGE", help="photograph")
    parser.add_argument("second", metavar="IMAGE", help="photograph of the same scene")
    kind = path_ending(".png", ".jpg", ".jpeg", PAGE)
    text = "picture (.png, .jpg) or page (.html) to write"
    add_option(parser, "--out", kind, "PATH", text, default=Path("matches.png"))
    text = "also save the matches: .npz with keypoints and geometry, or .h5 for hloc"
    add_option(parser, "--save", path_ending(".npz", *HDF5), "PATH", text)
    options.add_features(parser, advanced, detector="SIFT-steady", either=True)
    text = "try tilted views if the geometry is weak (default: unless --upright or --no-upright)"
    parser.add_argument("--aside", action=argparse.BooleanOptionalAction, help=text)
    options.add_matcher(parser, METHODS)
    text = "model to verify the matches with"
    add_option(parser, "--geometry", tuple(GEOMETRIES), "NAME", text, default="auto")
    text = "maximum error of an inlier (default: 3, essential: 1)"
    add_option(parser, "--threshold", positive(), "PX", text)
    text = "focal lengths of --geometry essential, in pixels (default: from EXIF data)"
    add_option(parser, "--focal", positive(), "PX", text, nargs="+")
    text = "COLMAP model with the cameras of --geometry essential"
    parser.add_argument("--cameras", type=Path, metavar="DIR", help=text)
    options.add_shared(advanced, "--ratio")
    text = "keep duplicate matches at the same location"
    advanced.add_argument("--repeated", action="store_true", help=text)
    text = "refine matched keypoints of the second image by aligning their patches"
    advanced.add_argument("--align", action="store_true", help=text)
    options.add_shared(advanced, "--quantize")
    options.add_quiet(parser)


def check(args: argparse.Namespace) -> None:
    """Check files and combinations of options, before any work."""
    for path in (Path(args.first), Path(args.second)):
        if path.is_dir():
            raise InputError(f"{path} is a folder: give a photograph")
        if not path.exists():
            raise InputError(f"no such file: {path}")
    options.check_features(args)
    options.check_output_file(args.out)
    if (args.focal or args.cameras) and args.geometry != "essential":
        raise InputError("--focal and --cameras are for --geometry essential")
    if args.focal and (args.cameras or len(args.focal) > 2):
        raise InputError("give --focal with one or two numbers, or --cameras")
    if args.align and args.repeated:
        raise InputError("--align moves each keypoint once: omit --repeated")
    if args.save:
        options.check_output_file(args.save)
        if args.save.suffix.lower() in HDF5:
            require("h5py", f"--save {args.save}")
            if args.align or args.aside:
                option = "--align" if args.align else "--aside"
                raise InputError(f"--save {args.save} has no keypoints for {option}: save .npz")


def run(args: argparse.Namespace) -> int:
    """Match, verify, draw and save."""
    method, matcher = options.check_matcher(args, METHODS)
    check(args)

    import numpy as np
    from tqdm import tqdm

    from kjax.data.cutting.keypoints import detect_in_grey
    from kjax.data.cutting.photographs import grey_values, read_reduced
    from kjax.keypoints import find_detector

    detector = find_detector(args.detector)

    def detect(photograph: Any, size: tuple[int, int]) -> Any:
        how = {"detector": detector, "upright": bool(args.upright)}
        grey = grey_values(photograph)
        return grey, size, detect_in_grey(grey, max_keypoints=args.keypoints, **how)

    read = [read_reduced(path, args.max_side) for path in (args.first, args.second)]
    cameras = find_cameras(args, [size for _, size in read]) if args.geometry == "essential" else []
    steps = tqdm(bar_format="{desc} [{elapsed}]", leave=False, disable=args.quiet)
    with steps:
        steps.set_description_str("detecting keypoints, loading weights")
        # OpenCV detects keypoints while packages and weights are loaded. One photograph at a time,
        # and before any description: both need up to a gigabyte.
        detecting = ThreadPoolExecutor(1).map(detect, *zip(*read, strict=True))

        from kjax.images.describer import load
        from kjax.images.draw import MAX_LINES, save_match_page, save_matches, turned_upright
        from kjax.images.exchange.outputs import write_pair
        from kjax.images.geometry import Verified
        from kjax.images.pairs import match_photos
        from kjax.images.poses import relative_pose
        from kjax.images.runner import keep_compiled_programs

        keep_compiled_programs()
        describer = load(args.weights, **options.model_options(args))
        shared = ("ratio", "aside", "repeated", "align", "quantize")
        essential = args.geometry == "essential"
        threshold = args.threshold or (1.0 if essential else 3.0)
        # hloc's matches are those of the keypoints that `kjax describe` writes.
        fixed = args.save and args.save.suffix.lower() in HDF5
        a, b = detecting
        first, second, matches, verified, way = match_photos(
            a,
            b,
            describer,
            method=method,
            matcher=matcher,
            upright=bool(args.upright) if fixed else args.upright,
            geometry="fundamental" if essential else args.geometry,
            threshold=threshold,
            progress=steps.set_description_str,
            **{name: getattr(args, name) for name in shared},
        )
        pose = None
        if essential:
            rows_a, rows_b = matches.indices.T
            pose = relative_pose(first.xy[rows_a], second.xy[rows_b], *cameras, threshold=threshold)
            verified = Verified(None, np.zeros(len(matches), bool))
            if pose is not None:
                verified = Verified(pose.essential, pose.inliers, "essential")
        files = zip((args.first, args.second), read, (first, second), strict=True)
        turned = (
            turned_upright(path, photo, one.resized((photo.shape[1], photo.shape[0])))
            for path, (photo, _), one in files
        )
        pictures, drawn = zip(*turned, strict=True)
        inliers = verified.inliers
        steps.set_description_str("drawing")
        found_names = list(options.named_photographs([args.first, args.second]))
        names = found_names[0], found_names[-1]
        is_page = args.out.suffix.lower() == PAGE
        if is_page:
            extent = describer.extent
            save_match_page(args.out, names, pictures, drawn, matches, inliers, extent=extent)
        else:
            shown = matches.keep(inliers).indices.T
            ends = (one.xy[rows] for one, rows in zip(drawn, shown, strict=True))
            save_matches(args.out, *pictures, *ends)
        if args.save:
            write_pair(args.save, names, first, second, matches, verified, pose)
    print(f"{len(first):,} and {len(second):,} keypoints")
    remark = WAYS[way] if inliers.any() else ""
    print(verdict(verified, args.geometry, all_drawn=is_page) + remark)
    if pose is not None:
        print(pose_line(pose))
    count = int(inliers.sum())
    part = "" if is_page or count <= MAX_LINES else f" ({MAX_LINES} of {count:,} matches drawn)"
    print(f"wrote {args.out}{part}" + (f" and {args.save}" if args.save else ""))
    return 0 if inliers.any() else 1


def find_cameras(args: argparse.Namespace, sizes: list[tuple[int, int]]) -> "list[Camera]":
    """Return the cameras of both photographs, from --cameras, --focal or EXIF data."""
    from kjax.data.colmap import read_model
    from kjax.data.cutting.photographs import open_image
    from kjax.images.collection.photographs import camera_of
    from kjax.images.poses import camera_of_focal

    paths, found = [Path(args.first), Path(args.second)], []
    focals = [*args.focal, args.focal[-1]][:2] if args.focal else [None, None]
    model = read_model(args.cameras) if args.cameras else None
    for path, size, focal in zip(paths, sizes, focals, strict=True):
        if model:
            named = [one for one in model.images.values() if Path(one.name).name == path.name]
            camera = model.cameras[named[0].camera_id] if len(named) == 1 else None
            if camera is None or (camera.width, camera.height) != size:
                raise InputError(f"{args.cameras} has no camera for {path.name} of this size")
        else:
            with open_image(path) as image:
                focal = focal or camera_of(image, path.name).focal
            if focal is None:
                raise InputError(f"{path} has no focal length in EXIF data: give --focal")
            camera = camera_of_focal(focal, size)
        found.append(camera)
    return found


def pose_line(pose: "RelativePose") -> str:
    """Return where the second camera is, seen from the first one."""
    cosine = min(max((float(pose.rotation.trace()) - 1) / 2, -1.0), 1.0)
    x, y, z = (-pose.rotation.T @ pose.translation).tolist()
    return (
        f"the second camera is turned by {math.degrees(math.acos(cosine)):.1f}° and lies towards "
        f"({x:.3f}, {y:.3f}, {z:.3f}): right, down, forward"
    )


def verdict(verified: "Verified", geometry: str, *, all_drawn: bool = False) -> str:
    """Return a line with the number of matches and of inliers, given the --geometry."""
    count, drawn = len(verified.inliers), "" if all_drawn else ": none is drawn"
    if not count:
        return f"no matches{drawn}"
    if verified.kind is None:
        return f"{counted(count, 'match')}, but no {GEOMETRIES[geometry]} explains them{drawn}"
    agreeing = f"{verified.inliers.sum():,} of {counted(count, 'match')}"
    return f"{agreeing} agree with one {GEOMETRIES[verified.kind]}"
