"""Columns of files, from whose numbers sizes and arrivals are drawn at random."""

from pathlib import Path
from typing import Any

import numpy as np

from hetsim.errors import Problem, ScenarioError, suggestion
from hetsim.model.files import open_input, opened
from hetsim.workload.contract import Floats


def read_column(path: Path, column: str) -> Floats:
    """Read a column of a CSV or Parquet file: finite numbers ≥ 0.

    ScenarioError names file, line (the header of a CSV is line 1) and column of the first twenty bad cells.
    """
    import pandas as pd

    parquet = path.suffix.lower() in (".parquet", ".pq")
    try:
        if parquet:
            import pyarrow.parquet

            with open_input(path) as source:
                columns = pyarrow.parquet.read_schema(source).names
        else:
            with opened(path) as source:
                columns = [str(name) for name in pd.read_csv(source, nrows=0, skipinitialspace=True).columns]
    except (ValueError, OSError) as error:  # pandas' and pyarrow's own errors are both
        raise ScenarioError(Problem(f"cannot be read as a table: {error}", file=str(path))) from error
    if column not in columns:
        hint = suggestion(column, columns) or f"; it has {', '.join(columns)}"
        raise ScenarioError(Problem(f'no column "{column}"{hint}', file=str(path), line=None if parquet else 1))
    if parquet:
        cells = _parquet_cells(path, column)
    else:
        # As text and with blank lines kept, so that a bad cell can be quoted with its line number.
        with opened(path) as source:
            cells = pd.read_csv(
                source, usecols=[column], dtype=str, keep_default_na=False, skip_blank_lines=False,
                skipinitialspace=True,
            )[column]  # fmt: skip
    numbers = pd.to_numeric(cells, errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    if len(bad := np.flatnonzero(~(numbers >= 0) | np.isinf(numbers))):
        shown = bad[:20].tolist()
        raise ScenarioError(_bad_cell(path, column, row, cell=cells.iloc[row], parquet=parquet) for row in shown)
    if not len(numbers):
        raise ScenarioError(Problem(f'column "{column}" is empty', file=str(path)))
    return numbers


def _parquet_cells(path: Path, column: str) -> Any:
    import pyarrow as pa
    import pyarrow.parquet

    try:
        with open_input(path) as source:
            cells = pyarrow.parquet.read_table(source, columns=[column]).column(column)
        cells.validate(full=True)
        return cells.to_pandas()
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise ScenarioError(Problem(f'column "{column}" cannot be read: {error}', file=str(path))) from None


def _bad_cell(path: Path, column: str, row: int, cell: Any, parquet: bool) -> Problem:
    text = "" if cell is None else str(cell)
    what = f'"{text}" is not a number ≥ 0' if text.strip() else "the cell is empty"
    where = f"row {row + 1}, " if parquet else ""
    return Problem(f'{where}column "{column}": {what}', file=str(path), line=None if parquet else row + 2)
