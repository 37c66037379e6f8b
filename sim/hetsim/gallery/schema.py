"""The contents of an entry's `expected.yaml`."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from hetsim.errors import KeyProblem
from hetsim.model.units import Count, Name, NotNegative, Number, Seconds
from hetsim.scenario.fields import Model

Cell = str | int | float


def _joined(value: Any) -> Any:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be a text")
    return " ".join(value.split())


Text = Annotated[str, BeforeValidator(_joined)]


class AxisValue(Model):
    """The changes that one value of an axis makes in the scenario.

    The changes under `each` are templates: `{}` is replaced by the value, `{column}` by a column of the value's row in
    the figures, and `{inputs}` by the folder with files that do not ship (`--inputs`, otherwise the entry's own
    folder).
    """

    policy: Any = None  # replaces the scenario's whole policy: one that the scenario proposes
    set: dict[str, Any] = {}  # values of the scenario, by dotted path
    scenario: str | None = None  # in place of the entry's: a file, or the name of a shipped scenario


class Axis(Model):
    """An axis of published figures: a column that identifies runs, such as the policy."""

    values: dict[str, AxisValue] | None = None  # changes by value of the axis
    each: AxisValue | None = None  # the changes for every value that occurs in the figures
    table: str | None = None  # a file with one row per value, in its first column or the column named like the axis
    where: dict[str, Cell] = {}  # selects rows of the table
    extra_values: dict[str, AxisValue] = {}  # values that are also run; the paper has no figure for them

    def _check_keys(self) -> None:
        if (self.values is None) == (self.each is None):
            raise ValueError("give either values (the changes of each value) or each (a pattern for all)")
        if self.table is not None and self.each is None:
            raise KeyProblem("table", "table needs the key each: the changes that each row makes")


class FigureValue(Model):
    """A metric, or a column of tasks, to compare with a column of a paper's figures."""

    metric: Name | None = None  # a metric (`hetsim list`), or planned_makespan and other notes of a planner
    column: Name | None = None  # column of the result's tasks, compared task by task with the figures' column
    key: Name = "id"  # for a column of tasks: the column of the figures with the task's id
    # start of a device metric's window. Default: that of the run
    start: Annotated[Seconds | None, Field(alias="from")] = None
    to: Seconds | None = None  # end of the window
    scale: Number = 1.0  # factor from the metric to the paper's figure: 100 for percent
    unit: str = ""  # unit of the figure, for tables
    label: str = ""  # title in tables and pictures. Default: the column's name

    def _check_keys(self) -> None:
        if (self.metric is None) == (self.column is None):
            raise ValueError("give either metric or column")
        if (self.start is None) != (self.to is None):
            raise ValueError("a window must have both from and to")
        if self.start is not None and self.to is not None and self.to <= self.start:
            raise ValueError("the window must end after it begins: to must be above from")


class Tolerance(Model):
    """The allowed difference, as the source states it; the first given rule applies."""

    absolute: NotNegative | None = None  # maximum absolute difference
    relative: NotNegative | None = None  # maximum difference / figure
    deviations: NotNegative | None = None  # maximum difference in standard deviations of the authors' seeds
    upper_bound: bool = False  # the figure is a bound that may not be exceeded
    # bound on the mean ratio to the figures, which are the best known
    mean_ratio: Annotated[float, Field(gt=0)] | None = None
    # level of the replications' confidence interval, which must contain the figure
    interval: Annotated[float, Field(gt=0, lt=1)] | None = None
    shape: bool = False  # the paper only has a picture: figures are ranks (1 the minimum) along its axis

    def _check_keys(self) -> None:
        given = [self.absolute is not None, self.relative is not None, self.deviations is not None, self.upper_bound,
                 self.mean_ratio is not None, self.interval is not None, self.shape]  # fmt: skip
        if sum(given) != 1:
            raise ValueError("give one of absolute, relative, deviations, upper_bound, mean_ratio, interval, shape")

    @property
    def text(self) -> str:
        if self.absolute is not None:
            return "exact" if self.absolute == 0 else f"± {self.absolute:g}"
        if self.relative is not None:
            return f"± {100 * self.relative:g} %"
        if self.deviations is not None:
            return f"± {self.deviations:g} standard deviations of the authors' seeds"
        if self.mean_ratio is not None:
            return f"a mean ratio of at most {self.mean_ratio:g} to the best known"
        if self.interval is not None:
            return f"inside the {100 * self.interval:g} % interval"
        return "at most" if self.upper_bound else "the same order"


class WideFigures(Model):
    """Form of a table of figures with one column per value of an axis, such as policy."""

    axis: Name  # name of the axis
    value: Name  # name of the cells' value
    columns: dict[str, str]  # value of the axis, by column of the file


class FiguresTable(Model):
    """A table of a paper's published figures, and how hetsim measures the same values."""

    name: Name  # name of the table, unique in the entry
    title: str = ""  # title of the table
    scenario: str | None = None  # in place of the entry's scenario
    figures: str | list[dict[str, Cell]]  # the authors' figures: a CSV file, or rows
    where: dict[str, Cell] = {}  # selects rows of the figures
    wide: WideFigures | None = None  # for figures with one column per value of an axis
    # by column of the figures: the runs; the mean is taken over an axis that the figures lack
    axes: dict[Name, Axis] = {}
    seeds: Name | None = None  # column with the authors' seeds, over which their mean is taken
    # runs per case. Default: those of the scenario, or as many as the authors' seeds
    replications: Count | None = None
    values: dict[Name, FigureValue]  # compared values, by column of the figures
    tolerance: Tolerance  # maximum difference from the figures
    short: dict[str, list[Cell] | int] = {}  # the case that is run at every change: values by axis, and `replications`
    picture: Literal["bars", "none"] = "bars"  # bars: one group of bars per value of the picture's axis
    across: Name | None = None  # axis along the picture. Default: the last

    @field_validator("values")
    @classmethod
    def _some(cls, value: dict[str, FigureValue]) -> dict[str, FigureValue]:
        if not value:
            raise ValueError("give at least one column of the figures")
        return value


class Input(Model):
    """A file that a case needs, but that does not ship because of its license."""

    file: Name  # name in the folder that `--inputs` names
    url: str  # download address, or the page with the link
    sha256: Annotated[str | None, Field(pattern="^[0-9a-f]{64}$")] = None  # SHA-256 of the content, if known


class Expected(Model):
    """A gallery entry as its file describes it: published figures, and comparisons."""

    title: Text  # what was published, in a few words
    paper: Text  # authors, title, venue and year
    link: str = ""  # address of the paper
    source: Text  # origin of inputs and figures: repository and commit, or the paper's page
    license: Text  # license of the inputs in the folder; `none shipped` if all inputs are our own
    notice: str | None = None  # file with the notice that the license requires
    inputs: list[Input] = []  # files that do not ship; a case that sets a path to one needs a folder `--inputs` with it
    scenario: str | None = None  # the scenario. Default: the file next to the folder, with its name
    measured_on: str = ""  # the real machine of the figures, if any
    property: Text | None = None  # surprising properties of the published setup, with figures
    differences: Text | None = None  # why the results here differ, if they do
    tables: Annotated[list[FiguresTable], Field(min_length=1)]  # compared tables

    def _check_keys(self) -> None:
        names = [table.name for table in self.tables]
        if len(set(names)) < len(names):
            raise KeyProblem("tables", "each table must have a different name")
        if self.license != NONE_SHIPPED and self.notice is None:
            raise KeyProblem(
                "notice", f"inputs under {self.license} ship with the notice of their license; name its file"
            )


NONE_SHIPPED = "none shipped"
