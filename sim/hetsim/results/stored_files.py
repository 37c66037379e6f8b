"""Read stored runs and studies safely: only regular files, with bounded memory.

A folder can come from an untrusted source.  A few kilobytes of JSON or Parquet can expand to gigabytes (nested empty
lists, one value repeated a billion times), and a pipe blocks its reader forever; such files are rejected before they
are read.  Digests check that the contents are those that hetsim wrote (`sealed`, `verify`).
"""

import errno
import hashlib
import io
import json
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from hetsim.errors import DamagedFile, HetsimError, UsageError
from hetsim.model.units import shown

if TYPE_CHECKING:
    import pandas as pd

FREE_VALUES = 1_000_000  # Values of a JSON file above which each must have at least `VALUE` bytes on average.
VALUE = 5
FREE_ROWS = 200_000  # Rows of a Parquet file above which each must have at least a quarter of a byte.
MAX_COLUMNS = 5_000  # Maximum number of columns of a Parquet file; hetsim writes some hundreds.
# Bytes of a file above which at least a hundredth must be allocated on the disk (sparse files).
MAX_HOLES = 100_000_000
DEPTH = 100  # Maximum nesting of lists and mappings in a YAML file.
TEXT = 100_000_000  # Bytes of text allowed in any Parquet column; a larger one has at most 100 times its file's size.


def open_stored(path: Path) -> io.BufferedReader:
    """Open a file to read; OSError if it is missing, DamagedFile if not regular."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # opening a pipe does not wait for its writer
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise DamagedFile(path, "its symbolic links form a cycle") from None
    about = os.fstat(handle)
    is_file = stat.S_ISREG(about.st_mode)
    if is_file and about.st_size <= max(MAX_HOLES, 100 * 512 * getattr(about, "st_blocks", about.st_size)):
        return open(handle, "rb")
    os.close(handle)
    raise DamagedFile(path, "almost all of the file is holes without data" if is_file else "it is not a regular file")


def read_stored(path: Path) -> bytes:
    """Read a file; OSError if it is missing, DamagedFile if it is not regular."""
    with open_stored(path) as stream:
        return stream.read()


def read_json(path: Path) -> Any:
    """Parse a JSON file; OSError, ValueError or DamagedFile."""
    return parse_json(path, read_stored(path))


def parse_json(path: Path, text: bytes) -> Any:
    """Parse the contents of a JSON file; ValueError or DamagedFile."""
    values = text.count(b",") + text.count(b"[") + text.count(b"{")
    if values > max(FREE_VALUES, len(text) // VALUE):
        raise DamagedFile(path, f"it has {values:,} values in only {len(text):,} bytes")
    try:
        return json.loads(text)
    except RecursionError:
        raise DamagedFile(path, "its lists are nested too deeply") from None


def parse_yaml(of: str, text: str) -> Any:
    """Parse the YAML of a stored run's scenario; DamagedFile if it is invalid."""
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = 0
    try:
        for event in yaml.parse(text, loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent) or depth > DEPTH:  # a few lines could stand for gigabytes
                raise DamagedFile(f"scenario.yaml of {of}", "it is not a file as hetsim writes it")
        return yaml.load(text, loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DamagedFile(f"scenario.yaml of {of}", f"it is not YAML ({error})") from None


@contextmanager
def reading_stored(*folders: str | Path) -> Iterator[None]:
    """Raise UsageError for unexpected errors in reading the files of these folders."""
    try:
        yield
    except (HetsimError, OSError, MemoryError):
        raise
    except Exception as error:
        if type(error).__module__.partition(".")[0] == "click":
            raise
        where, reason = " or ".join(map(str, folders)), " ".join(str(error).split())
        raise UsageError(
            f"the files in {where} cannot be used ({type(error).__name__}: {reason or 'no message'}); either they were "
            "changed after hetsim wrote them, or hetsim has a defect, which you can report"
        ) from error


def read_frame(path: Path) -> "pd.DataFrame":
    """Read a Parquet file as a table; OSError, ValueError or DamagedFile."""
    import pandas as pd

    check_parquet(path)
    return pd.read_parquet(path)


def check_parquet(path: Path) -> None:
    """Raise DamagedFile if a Parquet footer claims more than its bytes can hold."""
    import pyarrow.parquet as pq

    with open_stored(path) as stream:
        size = os.fstat(stream.fileno()).st_size
    with pq.ParquetFile(path) as file:
        about = file.metadata
        if about.num_columns > MAX_COLUMNS:
            raise DamagedFile(path, f"it has {about.num_columns:,} columns, more than {MAX_COLUMNS:,}")
        if about.num_rows > max(FREE_ROWS, 4 * size):
            raise DamagedFile(path, f"it states {about.num_rows:,} rows in only {size:,} bytes")
        for number, column in enumerate(about.schema):
            chunks = [about.row_group(group).column(number) for group in range(about.num_row_groups)]
            stored = sum(chunk.total_uncompressed_size for chunk in chunks)
            if column.physical_type == "BYTE_ARRAY" and stored * about.num_rows > max(TEXT, 100 * size):
                _check_text(path, column.path, max(TEXT, 100 * size))


def _check_text(path: Path, column: str, most: int) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    with pq.ParquetFile(path, read_dictionary=[column]) as file:
        taken = 0
        for chunk in file.read(columns=[column]).column(0).chunks:
            if not pa.types.is_dictionary(chunk.type):
                return  # nested lists, whose texts are stored one by one
            taken += pc.sum(pc.binary_length(chunk.dictionary).take(chunk.indices)).as_py() or 0
    if taken > most:
        raise DamagedFile(path, f"its column {column} would take {taken:,} bytes")


# Files that show changes: JSON with a checksum, and digests of neighboring files.
#
# Every file of JSON that a run or a study writes for hetsim to read again has the keys `format` and `sha256`.  The
# digests of the other files of a directory are in its mark (`run.json`, `tables.json`).


FORMAT = 2  # Format of all sealed files.  The record of a run has its own version, `saved_classes.VERSION`.


_SEAL = ', "sha256": "{}"}}\n'  # the end of a file that is not indented


def sealed(value: Mapping[str, Any], indent: int | None = None) -> str:
    """Format JSON with `format` and `sha256`, a checksum of the other contents."""
    value = {"format": FORMAT, **value}
    text = _dumps(value)
    digest = hashlib.sha256(text.encode()).hexdigest()
    if indent is None:
        return text[:-1] + _SEAL.format(digest)
    return _dumps({**value, "sha256": digest}, indent) + "\n"


def unsealed(path: Path) -> dict[str, Any]:
    """Read a JSON file that hetsim wrote with a checksum, and verify it.

    OSError: the file is missing; DamagedFile: it was changed; UsageError: it has the format of another version.
    """
    return unsealed_text(path, read_stored(path))


def unsealed_text(path: Path, text: bytes) -> dict[str, Any]:
    """Verify the checksum of a JSON file written by `sealed`, and return its contents."""
    try:
        content = parse_json(path, text)
        if not isinstance(content, dict):
            raise ValueError
    except ValueError:
        raise DamagedFile(path, "it is not a JSON object") from None
    number, stated = content.get("format"), content.pop("sha256", None)
    other = f"it has format {number}, and this hetsim reads format {FORMAT}" if number != FORMAT else ""
    seal = _SEAL.format(stated).encode()
    compact = text.endswith(seal)  # then the text itself is what was digested
    digest = hashlib.sha256(memoryview(text)[: -len(seal)] if compact else _dumps(content).encode())
    digest.update(b"}" if compact else b"")
    if stated != digest.hexdigest() or not (compact or text.decode() == sealed(content, 1)):
        raise DamagedFile(path, f"its checksum does not match{other and f' ({other})'}")
    if other:
        raise UsageError(f"{path} cannot be read: {other}")
    del content["format"]
    return content


def _dumps(value: Mapping[str, Any], indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)


def digest_of(path: Path) -> str:
    with open_stored(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    return {name: digest_of(folder / name) for name in names}


def check_names(mark: Path, names: Collection[Any]) -> None:
    """Raise DamagedFile unless all files that `mark` names are in its directory.

    `mark` can come from an untrusted source: a name or link that leads out of the directory would be read, and copied
    on save.
    """
    folder = os.path.realpath(mark.parent)
    for name in names:
        parts = PurePosixPath(name).parts if isinstance(name, str) else ()
        if not parts or name != "/".join(parts) or {"..", "/"} & set(parts) or set("\\:\0") & set(name):
            raise DamagedFile(mark, f"it names the file {shown(name)}, which is not a valid path inside its folder")
        if any("/".join(parts[:depth]) in names for depth in range(1, len(parts))):
            raise DamagedFile(mark, f"it names the file {shown(name)}, and one of its folders as a file too")
        if not Path(os.path.realpath(mark.parent / name)).is_relative_to(folder):
            raise DamagedFile(mark, f"it names the file {shown(name)}, which is a link out of the folder")


def verify(path: Path, digest: str | None) -> Path:
    """Check the digest of a file and return its path; DamagedFile if it differs."""
    if digest is None:
        return path
    try:
        actual = digest_of(path)
    except FileNotFoundError:
        raise DamagedFile(path, "it is missing") from None
    if actual != digest:
        raise DamagedFile(path, "its checksum does not match")
    return path
