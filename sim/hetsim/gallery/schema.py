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

    In texts of `each`, `{}` is the value, `{column}` a column of its row, and `{inputs}` the folder with files that do
    not ship (`--inputs`, otherwise the entry's own folder).
    """

    policy: Any = None
    """In place of the scenario's whole policy: one of those that the scenario proposes."""
    set: dict[str, Any] = {}
    """Values of the scenario, by dotted path."""
    scenario: str | None = None
    """Another scenario than that of the entry: a file, or the name of a shipped one."""


class Axis(Model):
    """One column of the figures that says what was run."""

    values: dict[str, AxisValue] | None = None
    """By value, what it changes."""
    each: AxisValue | None = None
    """The changes for every value that occurs in the figures."""
    table: str | None = None
    """A file with a row for each value: its first column, or that of the axis's name, has the value."""
    where: dict[str, Cell] = {}
    """Rows of the table that count."""
    extra_values: dict[str, AxisValue] = {}
    """Values that are run as well, of which the paper has no figure."""

    def _check_keys(self) -> None:
        if (self.values is None) == (self.each is None):
            raise ValueError("give either values (the changes of each value) or each (a pattern for all)")
        if self.table is not None and self.each is None:
            raise KeyProblem("table", "rows needs each: the changes of a row")


class FigureValue(Model):
    """The measure of a column of figures: a metric, or a column of tasks."""

    metric: Name | None = None
    """A metric (`hetsim list` has them under results), or planned_makespan and other notes of a planner."""
    column: Name | None = None
    """A column of the result's tasks, compared task by task with the figures' column."""
    key: Name = "id"
    """For a column of tasks: the column of the figures that has the task's id."""
    start: Annotated[Seconds | None, Field(alias="from")] = None
    """Where the metric's window begins; that of the run unless given.  For metrics of devices."""
    to: Seconds | None = None
    """Where it ends."""
    scale: Number = 1.0
    """Factor from the metric to the paper's figure: 100 for percent."""
    unit: str = ""
    """Unit of the figure, for tables."""
    label: str = ""
    """Its title in tables and pictures; its name unless given."""

    def _check_keys(self) -> None:
        if (self.metric is None) == (self.column is None):
            raise ValueError("give either metric or column")
        if (self.start is None) != (self.to is None):
            raise ValueError("a window must have both from and to")
        if self.start is not None and self.to is not None and self.to <= self.start:
            raise ValueError("the window from..to is empty")


class Tolerance(Model):
    """The allowed difference, as the source states it; the first given rule counts."""

    absolute: NotNegative | None = None
    """At most this far from it."""
    relative: NotNegative | None = None
    """At most this share of it away."""
    deviations: NotNegative | None = None
    """The number of standard deviations of the authors' seeds that it may be away."""
    upper_bound: bool = False
    """The figure is a bound that may not be exceeded."""
    mean_ratio: Annotated[float, Field(gt=0)] | None = None
    """The figures are the best known, and the mean ratio to them over the whole table is at most this."""
    interval: Annotated[float, Field(gt=0, lt=1)] | None = None
    """The confidence interval of the replications, at this level, covers it."""
    shape: bool = False
    """The paper has a picture and no numbers: the figures are places (1 the least) along the axis of the picture."""

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
    """Figures with a column for each value of an axis."""

    axis: Name
    """The axis."""
    value: Name
    """Name of what the cells hold."""
    columns: dict[str, str]
    """By column of the file, the value of the axis."""


class FiguresTable(Model):
    """One table of figures, and how its values are measured here."""

    name: Name
    """Name of the table, unique in the entry."""
    title: str = ""
    """What it shows."""
    scenario: str | None = None
    """Another scenario than that of the entry."""
    figures: str | list[dict[str, Cell]]
    """The authors' figures: a CSV file, or rows."""
    where: dict[str, Cell] = {}
    """Rows of the figures that count."""
    wide: WideFigures | None = None
    """For figures with a column for each value of an axis."""
    axes: dict[Name, Axis] = {}
    """The runs, by column of the figures.  The mean is taken over an axis that the figures lack."""
    seeds: Name | None = None
    """Column of the figures with the authors' seeds, over which their mean is taken."""
    replications: Count | None = None
    """Runs of each case; those of the scenario unless given, as many as the authors' seeds."""
    values: dict[Name, FigureValue]
    """What is compared, by column of the figures."""
    tolerance: Tolerance
    """How close is close enough."""
    short: dict[str, list[Cell] | int] = {}
    """The case that is run at every change: values by axis, and `replications`."""
    picture: Literal["bars", "none"] = "bars"
    """bars: a group of bars for each value of the picture's axis."""
    across: Name | None = None
    """The axis along the picture; the last unless given."""

    @field_validator("values")
    @classmethod
    def _some(cls, value: dict[str, FigureValue]) -> dict[str, FigureValue]:
        if not value:
            raise ValueError("give at least one column of the figures")
        return value


class Input(Model):
    """A file that a case needs and whose license does not let it ship."""

    file: Name
    """Its name in the folder that is given with `--inputs`."""
    url: str
    """Where it can be downloaded, or the page that leads to it."""
    sha256: Annotated[str | None, Field(pattern="^[0-9a-f]{64}$")] = None
    """SHA-256 of its content, where known."""


class Expected(Model):
    """An entry of the gallery."""

    title: Text
    """What was published, in a few words."""
    paper: Text
    """Authors, title, where and when."""
    link: str = ""
    """Where the paper is."""
    source: Text
    """Where inputs and figures come from: repository and commit, or the page of the paper."""
    license: Text
    """License of the inputs in the entry's folder; `none shipped` where there are none of others."""
    notice: str | None = None
    """File with the notice that the license wants to go with the inputs."""
    inputs: list[Input] = []
    """Files that do not ship; a case that sets a path to one runs only where `--inputs` names a folder that has it."""
    scenario: str | None = None
    """The scenario; unless given the one next to the folder, with its name."""
    measured_on: str = ""
    """Where the figures are of a real machine: which."""
    property: Text | None = None
    """Surprising properties of the published setup, with figures."""
    differences: Text | None = None
    """Why what comes out here differs, as far as it does."""
    tables: Annotated[list[FiguresTable], Field(min_length=1)]
    """What is compared."""

    def _check_keys(self) -> None:
        names = [table.name for table in self.tables]
        if len(set(names)) < len(names):
            raise KeyProblem("tables", "each table must have a different name")
        if self.license != NONE_SHIPPED and self.notice is None:
            raise KeyProblem(
                "notice", f"inputs under {self.license} ship with the notice of their license; name its file"
            )


NONE_SHIPPED = "none shipped"
