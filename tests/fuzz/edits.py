"""Damage that needs a format's own library: links in HDF5 files, odd rows in databases."""

import contextlib
import io
import sqlite3
import tarfile
import zipfile
from pathlib import Path
from random import Random

import numpy as np


def edit_hdf5(folder: Path, rng: Random) -> None:
    """One dataset or group replaced by something that it should not be."""
    import h5py

    path = rng.choice(sorted(folder.glob("*.h5")))
    with contextlib.suppress(Exception), h5py.File(path, "a") as file:
        names: list[str] = []
        file.visit(names.append)
        name = rng.choice(names)
        del file[name]
        layout = h5py.VirtualLayout((10,), "f4")
        layout[:] = h5py.VirtualSource("/etc/other.h5", "x", (10,))
        shape = rng.choice(((), (3,), (2, 2, 2), (0, 2)))
        odd = np.zeros(4, [("x", "f4"), ("y", "i2")])
        link, value = rng.choice(("/nowhere", "/")), rng.choice((np.nan, 1j, True, b"x", 10**18))
        rng.choice(
            (
                lambda: None,
                lambda: file.__setitem__(name, h5py.ExternalLink("/etc/passwd", "/")),
                lambda: file.__setitem__(name, h5py.SoftLink(link)),
                lambda: file.create_dataset(name, (10,), "f4", external=[("/etc/hostname", 0, 40)]),
                lambda: file.create_virtual_dataset(name, layout),
                lambda: file.create_dataset(name, (10**9, 8), "f4", chunks=(10**4, 8), fillvalue=1),
                lambda: file.create_dataset(name, data=h5py.Empty("f4")),
                lambda: file.create_dataset(name, data=["a", "bc"], dtype=h5py.string_dtype()),
                lambda: file.create_dataset(name, data=np.zeros(shape)),
                lambda: file.create_dataset(name, data=value),
                lambda: file.create_dataset(name, data=odd, compression="gzip", maxshape=(None,)),
            )
        )()


_VALUES = (
    *(None, -1, 0, 1, 2**40, -(2**63), 2**63 - 1, 1.5),
    *("", "x", "a.jpg", b"", b"\xff" * 3, b"x" * 64),
)


def edit_database(folder: Path, rng: Random) -> None:
    """Rows that are no rows of COLMAP's, and tables that are none."""
    path = folder / "database.db"
    opened = contextlib.closing(sqlite3.connect(path))
    with contextlib.suppress(sqlite3.Error), opened as connection:
        tables = [
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if not name.startswith("sqlite")
        ]
        table = rng.choice(tables)
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        with connection:
            change = rng.randrange(7)
            if change == 0:
                connection.execute(f"DROP TABLE {table}")
                return
            if change == 1:
                connection.execute(f"DELETE FROM {table}")
            if change == 2:  # without its rules, a table takes anything
                connection.execute(f"CREATE TABLE copy AS SELECT * FROM {table}")
                connection.execute(f"DROP TABLE {table}")
                connection.execute(f"ALTER TABLE copy RENAME TO {table}")
            column, where = rng.choice(columns), rng.choice(("", " WHERE rowid = 1"))
            value = ("CAST(? AS TEXT)", b"\xc3\x28") if change == 3 else ("?", rng.choice(_VALUES))
            connection.execute(f"UPDATE {table} SET {column} = {value[0]}{where}", value[1:])


def hostile_zip(folder: Path, rng: Random) -> None:
    names = ("../out", "/abs", "C:\\x", "a/../../b", ".", "a\0b", "x" * 400, "\xc3\x28")
    link = zipfile.ZipInfo("link")
    link.external_attr = 0o120777 << 16
    contents = (
        [(rng.choice(names), b"x")],
        [(f"f{number % 7}", bytes(1000)) for number in range(150)],
        [(link, b"/etc/passwd")],
        [("a", b"file"), ("a/b", b"file below a file")],
        [("zeros", bytes(10_000_000))],
    )
    with zipfile.ZipFile(folder / "set.archive", "w", zipfile.ZIP_DEFLATED) as archive:
        for member in rng.choice(contents):
            archive.writestr(*member)


def hostile_tar(folder: Path, rng: Random) -> None:
    kinds = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE)
    mode = rng.choice(("w", "w:gz"))
    with tarfile.open(folder / "set.archive", mode) as archive:  # type: ignore[call-overload]
        info = tarfile.TarInfo(rng.choice(("a", "../out", "/abs", "a/b/../../../c", "é" * 200)))
        match rng.randrange(4):
            case 0:
                info.type, info.linkname = rng.choice(kinds), "/etc/passwd"
                archive.addfile(info)
            case 1:
                info.size = rng.choice((10**6, 10**8 if mode == "w:gz" else 10**6))
                archive.addfile(info, io.BytesIO(bytes(info.size)))
            case 2:
                size = rng.choice(("-1", "x", "9" * 30))
                info.pax_headers = {"comment": "x" * 10**6, "size": size}
                archive.addfile(info)
            case _:
                info.type, info.size = rng.choice((b"x", b"L", b"K", b"S", b"g")), 600
                archive.addfile(info, io.BytesIO(b"9" * 600))
