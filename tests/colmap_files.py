"""Writes COLMAP models and databases from COLMAP's published format description, and a scene."""

import sqlite3
import struct

import cv2
import numpy as np

OLD_IMAGES = (
    "CREATE TABLE images (image_id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL, name TEXT NOT NULL "
    "UNIQUE, camera_id INTEGER NOT NULL, prior_qw REAL, prior_qx REAL, prior_qy REAL, prior_qz "
    "REAL, prior_tx REAL, prior_ty REAL, prior_tz REAL)"
)
NEW_IMAGES = (
    "CREATE TABLE images (image_id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL, name TEXT NOT NULL "
    "UNIQUE, camera_id INTEGER NOT NULL)"
)
KEYPOINTS = (
    "CREATE TABLE keypoints (image_id INTEGER PRIMARY KEY NOT NULL, rows INTEGER NOT NULL, cols "
    "INTEGER NOT NULL, data BLOB)"
)
NEW_TABLES = (
    "CREATE TABLE rigs (rig_id INTEGER PRIMARY KEY)",
    "CREATE TABLE frames (frame_id INTEGER PRIMARY KEY, rig_id INTEGER)",
    "CREATE TABLE pose_priors (pose_prior_id INTEGER PRIMARY KEY, position BLOB)",
)
NO_POINT = 2**64 - 1


def write_binary(folder, cameras, images, points):
    """cameras: {id: (model number, width, height, parameters)}; images: {id: (quaternion,
    translation, camera id, name, [(x, y, point id or None)])}; points: {id: (xyz, error, track)}.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data = struct.pack("<Q", len(cameras))
    for number, (model, width, height, parameters) in cameras.items():
        data += struct.pack("<IiQQ", number, model, width, height)
        data += struct.pack(f"<{len(parameters)}d", *parameters)
    (folder / "cameras.bin").write_bytes(data)
    data = struct.pack("<Q", len(images))
    for number, (quaternion, translation, camera, name, keypoints) in images.items():
        data += struct.pack("<I7dI", number, *quaternion, *translation, camera)
        data += name.encode() + b"\0" + struct.pack("<Q", len(keypoints))
        for x, y, point in keypoints:
            data += struct.pack("<ddQ", x, y, NO_POINT if point is None else point)
    (folder / "images.bin").write_bytes(data)
    data = struct.pack("<Q", len(points))
    for number, (xyz, error, track) in points.items():
        data += struct.pack("<Q3d3BdQ", number, *xyz, 1, 2, 3, error, len(track))
        for pair in track:
            data += struct.pack("<II", *pair)
    (folder / "points3D.bin").write_bytes(data)


def write_database(path, keypoints, *, new_schema):
    """keypoints: {name: float array [K, columns]}."""
    connection = sqlite3.connect(path)
    for statement in (NEW_IMAGES if new_schema else OLD_IMAGES, KEYPOINTS):
        connection.execute(statement)
    for statement in NEW_TABLES if new_schema else ():
        connection.execute(statement)
    for number, (name, table) in enumerate(keypoints.items(), start=1):
        image = "INSERT INTO images (image_id, name, camera_id) VALUES (?, ?, 1)"
        connection.execute(image, (number, name))
        row = (number, *table.shape, np.asarray(table, "<f4").tobytes())
        connection.execute("INSERT INTO keypoints VALUES (?, ?, ?, ?)", row)
    connection.commit()
    connection.close()


class PlaneScene:
    """A textured plane z = 0 before three cameras that face it, turned and at other distances.

    A circle on the plane is then a circle in every photograph, so that the patches of a point ought
    to be equal but for interpolation. All coordinates are COLMAP's: the first pixel's centre is
    (0.5, 0.5).
    """

    focal, width, height = 500.0, 480, 360
    turns = (0.0, 0.7, -1.3)
    centres = ((-0.15, 0.0, -2.0), (0.15, 0.1, -2.6), (0.0, 0.35, -3.2))
    names = ("first.png", "in folder/second.png", "third.png")

    def __init__(self, seed=0, count=40):
        rng = np.random.default_rng(seed)
        self.texture = cv2.GaussianBlur(rng.normal(0, 1, (800, 800)), (0, 0), 4)
        self.texture = np.clip(128 + 40 * self.texture / self.texture.std(), 0, 255)
        # 200 pixels of texture a unit, the origin in the middle of the texture.
        self.points = np.column_stack([rng.uniform(-0.3, 0.3, (count, 2)), np.zeros(count)])
        self.sizes = rng.uniform(0.006, 0.015, count)
        self.directions = rng.uniform(-np.pi, np.pi, count)

    def rotation(self, view):
        cosine, sine = np.cos(self.turns[view]), np.sin(self.turns[view])
        return np.array([[cosine, -sine, 0], [sine, cosine, 0], [0, 0, 1]])

    def photo(self, view):
        """Renders one view, through the homography from texture pixels to photograph pixels."""
        rotation, centre = self.rotation(view), np.array(self.centres[view])
        from_texture = np.array([[1 / 200, 0, -2], [0, 1 / 200, -2], [0, 0, 1]])
        plane = np.column_stack([rotation[:, :2], -rotation @ centre])
        camera = np.array([[self.focal, 0, 240], [0, self.focal, 180], [0, 0, 1]])
        to_opencv = np.array([[1, 0, -0.5], [0, 1, -0.5], [0, 0, 1]])
        homography = to_opencv @ camera @ plane @ from_texture
        texture, size = self.texture.astype(np.float32), (self.width, self.height)
        warped = cv2.warpPerspective(texture, homography, size, flags=cv2.INTER_LINEAR)
        return np.rint(warped).astype(np.uint8)

    def keypoints(self, view):
        """x, y, scale and orientation of every point."""
        rotation, centre = self.rotation(view), np.array(self.centres[view])
        in_camera = (self.points - centre) @ rotation.T
        xy = self.focal * in_camera[:, :2] / in_camera[:, 2:] + (240, 180)
        sigma = self.sizes * self.focal / in_camera[:, 2]
        return np.column_stack([xy, sigma, self.directions + self.turns[view]])

    def tables(self):
        """What the database holds: before the scene's keypoints, one that sees no point."""
        stray = np.array([[3.25, 4.5, 2.0, 0.5]])
        return {
            name: np.concatenate([stray, self.keypoints(view)]).astype(np.float32)
            for view, name in enumerate(self.names)
        }

    def model(self, tables, errors=None):
        """Return arguments for `write_binary`, with points numbered from 100."""
        cameras = {7: (0, self.width, self.height, (self.focal, 240.0, 180.0))}
        images = {}
        for view, (name, table) in enumerate(tables.items()):
            half = self.turns[view] / 2
            quaternion = (float(np.cos(half)), 0.0, 0.0, float(np.sin(half)))
            translation = (-self.rotation(view) @ np.array(self.centres[view])).tolist()
            ids = [None, *range(100, 100 + len(table) - 1)]
            rows = [(float(row[0]), float(row[1]), p) for row, p in zip(table, ids, strict=True)]
            images[view + 1] = (quaternion, translation, 7, name, rows)
        errors = np.full(len(self.points), 0.5) if errors is None else errors
        points = {
            100 + i: (xyz.tolist(), float(errors[i]), [(view, i + 1) for view in (1, 2, 3)])
            for i, xyz in enumerate(self.points)
        }
        return cameras, images, points

    def write(self, folder):
        """Photographs, database and model below a folder."""
        tables = self.tables()
        for view, name in enumerate(self.names):
            path = folder / "photos" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(path), self.photo(view))
        write_database(folder / "database.db", tables, new_schema=True)
        write_binary(folder / "sparse", *self.model(tables))
        return folder


def correlation(a, b):
    return np.corrcoef(a.ravel(), b.ravel())[0, 1]
