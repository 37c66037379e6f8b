"""Scenario files as documents: what YAML means here, positions, bounds, overrides, dump and load."""

import tracemalloc
from pathlib import Path

import pytest
from cost import lines_run
from hypothesis import given
from hypothesis import strategies as st
from tiers import examples

from hetsim.errors import ScenarioError, UsageError
from hetsim.scenario import overrides
from hetsim.scenario.file import document as documents


def messages(content, file="s.yaml"):
    with pytest.raises(ScenarioError) as caught:
        documents.parse(content, file)
    return str(caught.value).split("\n")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e6", 1_000_000.0), ("-3", -3), ("0.5", 0.5), (".5", 0.5), ("true", True), ("null", None), ("", None),
        ("no", "no"), ("1:30", "1:30"), ("012", "012"), ("0x10", "0x10"), ("1_000", "1_000"), ("~", "~"),
        ("2020-01-01", "2020-01-01"), ("nan", "nan"), (".inf", ".inf"), ("1e999", "1e999"), ("'1'", "1"),
        ("True", "True"),
    ],
)  # fmt: skip
def test_only_plain_words_and_numbers_are_resolved(text, value):
    found = documents.parse(f"a: {text}").data["a"]
    assert found == value and type(found) is type(value)


def test_keys_are_texts():
    assert documents.parse("scaling: {1: 1, 2: 1.9, true: 3}").data == {"scaling": {"1": 1, "2": 1.9, "true": 3}}


def test_positions_of_keys_and_items():
    found = documents.parse("a: 1\nb:\n  - c: 2\n  - d\n").positions
    assert found == {("a",): (1, 1), ("b",): (2, 1), ("b", 0): (3, 5), ("b", 0, "c"): (3, 5), ("b", 1): (4, 5)}


def test_a_problem_without_a_position_takes_that_of_what_is_around():
    document = documents.parse("a:\n  b: 1\n", "s.yaml")
    assert str(document.problem(("a", "x"), "is missing")) == "s.yaml:1:1: a.x: is missing"


def test_a_problem_below_what_an_override_replaced_is_that_of_the_override():
    document = documents.parse("a:\n  b: [1, 2]\n", "s.yaml")
    document.set_by["a", "b"] = "--set a.b"
    assert str(document.problem(("a", "b", 0), "is wrong")) == "--set a.b: a.b.0: is wrong"
    assert str(document.problem(("a",), "is wrong")) == "s.yaml:1:1: a: is wrong"


def test_a_problem_in_the_only_entry_has_its_line_with_and_without_the_list():
    for text, line in (("a:\n  b: 1\n", 2), ("a:\n- b: 1\n", 2), ("a:\n- c: 1\n  b: 1\n", 3)):
        document = documents.parse(text, "s.yaml")
        assert str(document.problem(("a", 0, "b"), "wrong")) == f"s.yaml:{line}:3: a.0.b: wrong"


def test_duplicate_keys_are_all_reported():
    assert messages("a: 1\na: 2\nb: {c: 1, c: 2}") == [
        "s.yaml:2:1: a: this key is given twice; the first is at line 1",
        "s.yaml:3:11: b.c: this key is given twice; the first is at line 3",
    ]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("- a\n- b", "s.yaml:1:1: a scenario must be a mapping of keys to values; got a list"),
        ("", "s.yaml:1:1: a scenario must be a mapping of keys to values; got empty"),
        ("just words", "s.yaml:1:1: a scenario must be a mapping of keys to values; got a single value"),
        (b"a: \xff", "s.yaml:1:4: is not UTF-8 text (byte 0xff); save it as UTF-8"),
        ("a: 1\n---\nb: 1", "s.yaml:2:1: a second document starts here; a file must have one scenario"),
        ("a: &x [*x]", 's.yaml:1:8: the alias "*x" needs an anchor "&x" that ends before it'),
        ("? [a]\n: 1", "s.yaml:1:3: a key must be text; got a list or a mapping"),
    ],
)
def test_what_is_no_scenario(content, problem):
    assert messages(content) == [problem]


def test_syntax_errors_have_line_and_column():
    (message,) = messages("a: 1\nb: [1,\nc: }")
    assert message.startswith("s.yaml:3:4: is not valid YAML: ")
    (message,) = messages("a: 1\n\tb: 2")
    assert message.startswith("s.yaml:2:1: is not valid YAML: ")


def test_tags_name_no_code():
    (message,) = messages("a: !!python/object/apply:os.system ['true']")
    assert message.startswith('s.yaml:1:4: tags such as "tag:yaml.org,2002:python/object/apply:os.system"')


def test_aliases_stand_for_copies():
    data = documents.parse("a: &x {b: [1]}\nc: *x\n").data
    assert data == {"a": {"b": [1]}, "c": {"b": [1]}}
    assert data["a"]["b"] is not data["c"]["b"]


@pytest.mark.slow
def test_an_alias_bomb_is_refused_while_it_is_small():
    lines = ["a: &a [" + ", ".join(["lol"] * 10) + "]"]
    for before, name in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{name}: &{name} [" + ", ".join([f"*{before}"] * 10) + "]")
    found = []
    assert lines_run(lambda: found.extend(messages("\n".join(lines)))) < 5_000_000
    (message,) = found
    assert "has more than 200,000 values" in message


@pytest.mark.parametrize("content", ["a: " + "[" * 1_000_000, "a: " + "{b: " * 500_000, "- " * 1_000_000])
def test_depth_is_bounded(content):
    (message,) = messages(content)
    assert "is nested more than 64 levels deep" in message


def test_a_file_of_100_mb_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "big.yaml"
    with path.open("wb") as stream:
        stream.truncate(100_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(ScenarioError) as caught:
            documents.read(path)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert str(caught.value).startswith(f"{path}: must be at most 4 MB; got 100.0 MB.")


def test_no_file_and_no_regular_file(tmp_path):
    with pytest.raises(ScenarioError, match="the file does not exist"):
        documents.read(tmp_path / "none.yaml")
    with pytest.raises(ScenarioError, match="must be a scenario file; got a folder"):
        documents.read(tmp_path)


# Overrides ------------------------------------------------------------------------------------------------

TEXT = """
policy: fcfs
cluster: {nodes: [{count: 8, gpus: {type: v100}}]}
workload:
  - name: quick
    gpu_time: 5 min
  - name: long.run
    classes: [{class: cnn, gpus: 1}]
    gpu_time: {mean: 1 s}
"""


def changed(*texts):
    document = documents.parse(TEXT, "s.yaml")
    overrides.apply(document, [overrides.parse_assignment(text) for text in texts])
    return document.data


def test_paths_are_keys_indexes_and_names():
    assert changed("cluster.nodes.0.count=16")["cluster"]["nodes"][0]["count"] == 16
    assert changed("workload.quick.count=1e3")["workload"][0]["count"] == 1000
    assert changed("workload.1.classes.cnn.gpus=4")["workload"][1]["classes"][0]["gpus"] == 4
    assert changed("workload.long.run.count=7")["workload"][1]["count"] == 7


def test_values_are_yaml():
    arrivals = changed("workload.quick.arrivals={process: poisson, rate: 4/h}")["workload"][0]["arrivals"]
    assert arrivals == {"process": "poisson", "rate": "4/h"}


def test_the_time_on_a_type_is_one_key_unless_the_time_is_a_mapping():
    assert changed("workload.quick.gpu_time.v100=1 s")["workload"][0]["gpu_time.v100"] == "1 s"
    assert changed("workload.1.gpu_time.mean=2 s")["workload"][1]["gpu_time"] == {"mean": "2 s"}


def test_the_policy_is_set_in_both_forms():
    assert changed("policy=sjf")["policy"] == {"scheduler": {"name": "sjf"}}
    assert changed("policy.scheduler.name=sjf")["policy"] == {"scheduler": {"name": "sjf"}}
    assert changed("policy.scheduler=sjf")["policy"] == {"scheduler": {"name": "sjf"}}
    assert changed("policy=sjf", "policy.admission.name=x")["policy"]["admission"] == {"name": "x"}
    placed = {"name": "fcfs", "placement": "best_fit"}
    assert changed("policy.placement=best_fit")["policy"]["scheduler"] == placed
    assert changed("policy.placement=first_fit", "policy.placement=best_fit")["policy"] == {"scheduler": placed}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("workload.quik.count=1", '--set workload.quik.count: workload has no entry "quik"; did you mean "quick"?'),
        (
            "cluster.nodes.3.count=1",
            '--set cluster.nodes.3.count: cluster.nodes has no entry "3" (it has 1 entry)',
        ),
        (
            "cluster.nodes.0.count.x=1",
            "--set cluster.nodes.0.count.x: cluster.nodes.0.count is a single value (8) without keys",
        ),
    ],
)
def test_a_path_that_leads_nowhere(text, problem):
    with pytest.raises(ScenarioError) as caught:
        changed(text)
    assert str(caught.value) == problem


def test_an_assignment_needs_a_sign_and_a_readable_value():
    with pytest.raises(UsageError, match="--set must be key.path=value"):
        overrides.parse_assignment("seed")
    with pytest.raises(UsageError, match="not valid YAML"):
        overrides.parse_assignment("seed=[1")


# Round trip -----------------------------------------------------------------------------------------------

words = st.sampled_from(["true", "null", "1e6", "012", "1:30", "no", "~", "", "- a", "a: b", "#x", "'", '"', "5 min"])
texts = words | st.text(st.characters(exclude_categories=("Cs", "Cc"), include_characters="\n\t"), max_size=20)
scalars = st.none() | st.booleans() | st.integers(-(10**15), 10**15) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    scalars | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=15,
)


@pytest.mark.slow
@examples(100)
@given(st.dictionaries(texts, values, max_size=5))
def test_what_is_dumped_loads_again_to_the_same(data):
    again = documents.parse(documents.dump(data)).data
    assert again == data
    assert repr(again) == repr(data)  # 1 and 1.0 and True are equal, but not the same


@given(st.binary(max_size=60) | st.text("ab:-[]{},&*!|>'\"%#? \n\t012e.~", max_size=40))
def test_any_text_is_read_or_refused(content):
    try:
        assert isinstance(documents.parse(content).data, dict)
    except ScenarioError as error:
        assert error.problems


def test_long_texts_behind_aliases_are_counted_by_their_length():
    text = "a: &a " + "x" * 100_000 + "\n" + "".join(f"b{n}: *a\n" for n in range(1000))
    assert "has more than 200,000 values (aliases counted each time)" in messages(text)[0]


def test_a_name_no_file_can_have():
    with pytest.raises(ScenarioError, match="cannot be read"):
        documents.read(Path("x" * 5000 + ".yaml"))
    with pytest.raises(ScenarioError, match="the file does not exist"):
        documents.read(Path("a\0b.yaml"))
