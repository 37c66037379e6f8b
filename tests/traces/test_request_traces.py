"""Request traces: what their rows mean, windows and samples, services that they feed, and every complaint."""

import gzip
import json
import pickle
import tracemalloc
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tiers import examples

import hetsim as hs
from hetsim.cli import main
from hetsim.errors import ScenarioError
from hetsim.model.ragged import Ragged
from hetsim.scenario.scenario import Scenario
from hetsim.workload.readers.request_tables import azure_llm, burstgpt, mooncake
from hetsim.workload.readers.request_tables import plain as request_table

PUBLIC = Path(__file__).parents[3] / "shared" / "data"
public = pytest.mark.skipif(not (PUBLIC / "mooncake").is_dir(), reason="the public excerpts are not here")

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n" + "\r\n".join(
    [
        "2023-11-16 23:59:59.9799600,4808,10",
        "2023-11-16 23:59:59.9799601,3180,8",
        "2023-11-17 00:00:01.0781490,110,27",
        "2023-11-17 00:00:04.9799600,7433,14",
    ]
)
BURST = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,GPT-4,1087,0,1087,API log
118.5,GPT-4,417,276,693,Conversation log
"""
SESSIONS = """\
Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
1,s1,2.5,GPT-4,10,20,30,Conversation log
2,,,ChatGPT,11,21,32,API log
2,s1,4,GPT-4,40,22,62,Conversation log
"""
MOON = """\
{"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}
{"timestamp": 27, "input_length": 1030, "output_length": 6, "hash_ids": [0, 1, 2]}

{"timestamp": 30.5, "input_length": 3, "output_length": 7, "hash_ids": [9], "more": null}
"""


@pytest.fixture
def file(tmp_path):
    def write(text, name="t.txt"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.fixture
def complaints(file, tmp_path):
    def of(reader, text, name="t.txt", **options):
        with pytest.raises(ScenarioError) as caught:
            reader(file(text, name), **options)
        return str(caught.value).replace(f"{tmp_path}/", "").split("\n")

    return of


def command(*arguments):
    return CliRunner().invoke(main, [str(part) for part in arguments])


def azure(times):
    """A trace with requests at so many seconds after ten o'clock, the k-th with k prompt tokens."""
    rows = (
        f"2023-11-16 {10 + int(t) // 3600}:{int(t) // 60 % 60:02}:{int(t) % 60:02}.{round(t % 1 * 1e7):07},{k},1"
        for k, t in enumerate(times)
    )
    return "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows)


# What rows mean -------------------------------------------------------------------------------------------------


def test_azure_counts_from_its_first_request_to_the_last_digit(file):
    found = azure_llm(file(AZURE))
    assert found.requests
    assert found.arrival.tolist() == [0.0, 1e-7, 1.098189, 5.0]
    assert found.extra["prompt_tokens"].tolist() == [4808, 3180, 110, 7433]
    assert found.extra["output_tokens"].tolist() == [10, 8, 27, 14]
    assert [pickle.loads(pickle.dumps(found)).line(row) for row in range(4)] == [2, 3, 4, 5]


def test_azure_of_later_years(file):
    stamps = ["2024-05-10 00:00:00.009930+00:00", "2024-05-10T00:00:00.5Z", "2024-05-10 00:00:02"]
    text = "\ufefftimestamp, ContextTokens ,GeneratedTokens\n" + "\n".join(f'"{stamp}",1,2' for stamp in stamps)
    assert azure_llm(file(text)).arrival.tolist() == [0.0, 0.49007, 1.99007]


def test_mooncake_keeps_the_names_of_blocks(file):
    found = mooncake(file(MOON))
    assert found.arrival.tolist() == [0.0, 0.027, 0.0305]
    assert [ids.tolist() for ids in found.hash_ids] == [[0, 1], [0, 1, 2], [9]]
    assert found.line(2) == 4 and not found.notes
    packed = mooncake(file(gzip.compress(MOON.encode()), "m.jsonl.gz"))
    assert packed.arrival.tolist() == found.arrival.tolist()
    without = mooncake(file('{"timestamp": 4, "input_length": 3, "output_length": 7}'))
    assert without.hash_ids is None and without.arrival.tolist() == [0.004]


def test_mooncake_notes_ids_that_are_not_one_a_block(file):
    odd = MOON.replace("[0, 1, 2]", "[0, 1]")
    assert mooncake(file(odd)).notes[0].endswith("1 request with more or fewer hash ids than one for each 512 tokens")


def test_burstgpt_leaves_out_what_failed(file):
    found = burstgpt(file(BURST))
    assert found.arrival.tolist() == [5.0, 118.5]
    assert found.class_.tolist() == ["ChatGPT", "GPT-4"] and found.user is None and "elapsed" not in found.extra
    assert "1 request without response tokens" in found.notes[0]
    assert burstgpt(file(BURST), failures=True).extra["output_tokens"].tolist() == [18, 0, 276]
    assert burstgpt(file(BURST), model="ChatGPT").arrival.tolist() == [5.0]


def test_burstgpt_sessions(file):
    found = burstgpt(file(SESSIONS))
    assert found.user.tolist() == ["s1", "", "s1"]
    np.testing.assert_array_equal(found.extra["elapsed"], [2.5, np.nan, 4])


# Windows, samples, order ----------------------------------------------------------------------------------------


def test_a_window_starts_at_zero_and_ends_before_until(file):
    path = file(azure([0, 1, 2, 3, 4]))
    found = azure_llm(path, since=1.0, until=4.0)
    assert found.arrival.tolist() == [0.0, 1.0, 2.0] and found.extra["prompt_tokens"].tolist() == [1, 2, 3]
    assert azure_llm(path, since=1.0, time_scale=0.5).arrival.tolist() == [0.0, 0.5, 1.0, 1.5]


def test_nothing_behind_the_window_is_read(file):
    path = file(azure([0, 1, 2]) + "\nnonsense")
    assert len(azure_llm(path, until=2.0)) == 2
    with pytest.raises(ScenarioError, match="1 cell"):
        azure_llm(path)


@examples(40)
@given(
    times=st.lists(st.integers(0, 10**9).map(lambda k: k / 10**6), min_size=1, max_size=60),
    since=st.integers(0, 900),
    lasts=st.integers(1, 900),
    share=st.sampled_from([1.0, 0.5]),
)
def test_rows_in_any_order_give_what_ordered_rows_give(tmp_path_factory, times, since, lasts, share):
    folder = tmp_path_factory.mktemp("order")
    cut = {"since": float(since), "until": float(since + lasts), "sample": share}
    for name, rows in (("any", times), ("ordered", sorted(times))):
        lines = [json.dumps({"timestamp": t * 1000, "input_length": 1, "output_length": 1}) for t in rows]
        (folder / name).write_text("\n".join(lines))

    def read(name, **more):
        try:
            return mooncake(folder / name, **cut, **more).arrival.tolist()
        except ScenarioError as error:
            return str(error.problems[0].message)

    assert read("any", sort=True) == read("ordered") == read("ordered", sort=True)


def test_sorting_moves_all_columns(file):
    rows = [(3, "b", [5]), (1, "a", []), (2, "b", [6, 7]), (1, "c", [8])]
    lines = [f"{t},{t * 10},{t},{user},{';'.join(map(str, ids))}" for t, user, ids in rows]
    text = "arrival,prompt_tokens,output_tokens,user,hash_ids\n" + "\n".join(lines)
    found = request_table(file(text), sort=True)
    assert found.arrival.tolist() == [1, 1, 2, 3] and found.extra["prompt_tokens"].tolist() == [10, 10, 20, 30]
    assert found.user.tolist() == ["a", "c", "b", "b"] and [found.line(row) for row in range(4)] == [3, 5, 4, 2]
    assert [ids.tolist() for ids in found.hash_ids] == [[], [8], [6, 7], [5]]


def test_a_sample_is_a_share_drawn_one_by_one(file):
    path = file(azure(np.arange(8000) / 4))
    found = azure_llm(path, sample=0.25)
    assert abs(len(found) - 2000) < 4 * np.sqrt(8000 * 0.25 * 0.75)
    gaps = np.diff(found.extra["prompt_tokens"])
    # Gaps of a thinned regular stream are geometric: the standard deviation is nearly the mean, not 0.
    assert abs(gaps.std() / gaps.mean() - np.sqrt(0.75)) < 0.08
    assert azure_llm(path, sample=0.25).arrival.tolist() == found.arrival.tolist()
    assert azure_llm(path, sample=0.25, sample_seed=1).arrival.tolist() != found.arrival.tolist()


@pytest.mark.slow
def test_memory_is_that_of_what_is_kept(file):
    """50,000 rows of 3.3 MB: all of them take their columns, a window and a sample of them next to nothing."""
    row = '{{"timestamp": {}, "input_length": 700, "output_length": 9, "hash_ids": [1, 2]}}'
    path = file("\n".join(row.format(k) for k in range(50_000)))
    assert path.stat().st_size > 3.2e6

    def peak(**cut):
        tracemalloc.start()
        try:
            count = len(mooncake(path, **cut))
            return count, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    count, most = peak(since=2.5, until=37.5, sample=0.01)
    assert 250 < count < 475 and most < 2.5e5
    count, most = peak(until=15.0)
    assert count == 15_000 and most < 15_000 * 150  # 7 columns of 8 bytes, twice, and what growing leaves over


# Services -------------------------------------------------------------------------------------------------------

LINEAR = {"compute": {"fixed": "10 ms", "per_prompt_token": "1 ms", "per_output_token": "100 ms"}, "max_batch": 1}


def scenario(trace, service=LINEAR, **more):
    entry = {"name": "llm", "trace": trace, **({} if service is None else {"service": service}), **more}
    cluster = {"nodes": {"cpus": 1, "gpus": {"type": "g", "count": 1}}}
    return {"name": "t", "cluster": cluster, "workload": [entry]}


def test_requests_of_a_trace_are_served(file):
    text = "arrival,prompt_tokens,output_tokens\n0,5,2\n0.1,7,1\n3,0,0\n"
    found = hs.run(scenario({"format": "requests", "path": str(file(text))}), check=True).tasks
    assert found["finish"].to_numpy() == pytest.approx([0.215, 0.332, 3.01], abs=1e-12)
    assert found["prompt_tokens"].tolist() == [5, 7, 0] and found["output_tokens"].tolist() == [2, 1, 0]


def test_a_language_model_answers_no_request_without_tokens(file):
    """A service of batches takes them as they are (above); a model reads a prompt and answers at least one token."""
    model = {"kind": "llm", "step": {"fixed": "10 ms"}}
    path = file("arrival,prompt_tokens,output_tokens\n0,5,2\n\n0.1,7,0\n0.2,0,1\n0.3,1,1\n")
    with pytest.raises(ScenarioError) as caught:
        Scenario.load(scenario({"format": "requests", "path": str(path)}, model)).build()
    reason = "must be at least 1 token; got 0"
    assert [str(problem) for problem in caught.value.problems] == [
        f"{path}:4: output_tokens {reason}", f"{path}:5: prompt_tokens {reason}"
    ]  # fmt: skip
    within = {"format": "requests", "path": str(path), "since": "250 ms"}
    assert len(Scenario.load(scenario(within, model)).build().tasks) == 1


def test_no_tokens_on_average_are_refused():
    document = scenario({}, LINEAR, arrivals={"process": "poisson", "rate": "2/s"}, count=4)
    del document["workload"][0]["trace"]
    for amount in (0, {"distribution": "exponential", "mean": 0.5}):
        document["workload"][0]["tokens"] = {"prompt": amount, "output": 3}
        with pytest.raises(ScenarioError, match=r"tokens.prompt.*: a request must have at least one token; got"):
            Scenario.load(document)


@pytest.mark.parametrize(
    ("service", "keys", "others"),
    [
        (LINEAR, {"compute", "variants", "cache"}, {"step", "kv", "also_on"}),
        ({"kind": "llm", "step": {"fixed": "1 ms"}}, {"step", "kv", "also_on"}, {"compute", "variants", "cache"}),
    ],
)
def test_an_unknown_key_of_a_service_is_told_with_the_keys_of_its_kind(service, keys, others):
    document = scenario({}, {**service, "zzz": 1}, arrivals={"process": "poisson", "rate": "2/s"}, count=4)
    del document["workload"][0]["trace"]
    with pytest.raises(ScenarioError) as caught:
        Scenario.load(document)
    (said,) = (problem.message for problem in caught.value.problems if "zzz" in problem.message)
    known = set(said.partition("the keys here are ")[2].split(", "))
    assert keys <= known and not others & known


def test_a_batch_takes_the_sum_of_its_requests(file):
    text = "arrival,prompt_tokens,output_tokens\n0,0,10\n0.5,5,2\n0.6,7,1\n"
    service = {**LINEAR, "max_batch": 8}
    found = hs.run(scenario({"format": "requests", "path": str(file(text))}, service), check=True).tasks
    assert found["batch"].tolist() == [1, 2, 2]
    assert found["finish"].to_numpy() == pytest.approx([1.01, 1.332, 1.332], abs=1e-12)


def test_tokens_of_synthetic_requests():
    entry = {
        "name": "s",
        "arrivals": {"process": "poisson", "rate": "2/s"},
        "count": 4000,
        "tokens": {"prompt": {"distribution": "lognormal", "mean": 50, "cv": 1}, "output": 3},
        "service": LINEAR,
    }
    document = scenario({})
    document["workload"] = [entry]
    found = hs.run(document).tasks
    assert (found["output_tokens"] == 3).all() and abs(found["prompt_tokens"].mean() / 50 - 1) < 0.08
    seconds = 0.01 + 0.001 * found["prompt_tokens"] + 0.3
    assert found["compute"].to_numpy() == pytest.approx(seconds.to_numpy(), abs=1e-9)


def test_count_until_scale_and_new_arrivals(file):
    trace = {"format": "azure_llm", "path": str(file(azure(range(10))))}
    assert len(Scenario.load(scenario(trace, count=3)).build().tasks) == 3
    scaled = Scenario.load(scenario(trace, time_scale=0.5, until="2 s")).build().tasks
    assert scaled.arrival.tolist() == [0, 0.5, 1, 1.5]
    drawn = Scenario.load(scenario(trace, arrivals={"process": "poisson", "rate": "1/s"})).build().tasks
    assert drawn.arrival.tolist() != list(range(10)) and drawn.extra["prompt_tokens"].tolist() == list(range(10))


def test_names_of_blocks_reach_the_tasks_through_merging(file):
    trace = {"format": "mooncake", "path": str(file(MOON))}
    document = scenario(trace)
    document["workload"].append(
        {"name": "b", "arrivals": {"process": "deterministic", "rate": "100/s"}, "count": 3, "gpu_time": "1 ms"}
    )
    tasks = Scenario.load(document).build().tasks
    of_trace = np.flatnonzero(tasks.class_code == tasks.classes.index("llm"))
    assert [tasks.hash_ids[row].tolist() for row in of_trace] == [[0, 1], [0, 1, 2], [9]]
    assert sum(map(len, tasks.hash_ids)) == 6 and len(tasks.hash_ids) == 6


def test_a_trace_beyond_every_capacity_says_so(file):
    text = "arrival,output_tokens,prompt_tokens\n" + "".join(f"{k / 10},2,0\n" for k in range(50))
    outcome = Scenario.load(scenario({"format": "requests", "path": str(file(text))})).build()
    assert outcome.warnings == [
        "llm: 10 requests/s arrive, but its devices serve at most 4.762/s: the queue grows without bound"
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"service": None}, "has arrival times of requests, but no times of work: add a service: to this entry"),
        ({"gpu_time": "1 s"}, "the times of requests are under service; leave out gpu_time"),
        ({"tokens": {"prompt": 1, "output": 1}}, "the requests are in the trace; leave out tokens"),
        ({"slo": "105 ms"}, "no request can meet it: a batch of one takes 111 ms on an idle device"),
        ({"trace": {"format": "azure_llm", "sample": 0}}, "must be a share above 0 and at most 1"),
        ({"trace": {"format": "azure_llm", "since": "9 s"}}, "no request remains: check since, until and sample"),
        ({"trace": {"format": "azure_llm", "since": "2 s", "until": "1 s"}}, "until (1 s) must be after since (2 s)"),
        ({"trace": {"format": "azure_llm", "time_scale": 0}}, "must be above 0"),
        ({"trace": {"format": "burstgpt"}}, 'no column "Request tokens"'),
        ({"trace": {"format": "requests"}}, 'no column "arrival"'),
    ],
)
def test_what_a_scenario_may_get_wrong(file, change, message):
    path = str(file(AZURE.split("\r\n2023-11-17 00:00:01")[0].replace(",8", ",1").replace("3180", "1")))
    trace = {"format": "azure_llm", **change.pop("trace", {}), "path": path}
    with pytest.raises(ScenarioError) as caught:
        Scenario.load(scenario(trace, **{"service": LINEAR, **change})).build()
    assert message in str(caught.value)


def test_a_service_does_not_serve_tasks(file):
    path = str(file("arrival,gpu_time\n0,1\n", "t.csv"))
    with pytest.raises(ScenarioError, match="workload.0.service: .* are tasks with run times; a service needs "
                                            "arrivals, or a trace of requests"):
        Scenario.load(scenario({"format": "tasks", "path": path})).build()


def test_coefficients_of_tokens_need_tokens(file):
    path = str(file("arrival\n0\n1\n"))
    with pytest.raises(ScenarioError, match="per_prompt_token needs the lengths of requests:"):
        Scenario.load(scenario({"format": "requests", "path": path})).build()
    plain = {"compute": {"per_item": "5 ms"}}
    found = hs.run(scenario({"format": "requests", "path": path}, plain)).tasks
    assert found["compute"].tolist() == pytest.approx([0.005, 0.005])


# RowProblems -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reader", "text", "expected"),
    [
        (azure_llm, "", "t.txt: is empty"),
        (azure_llm, "\n\n", "t.txt: has no rows"),
        (azure_llm, AZURE.split("\r")[0], "t.txt: has no requests"),
        (azure_llm, AZURE.replace(",", ";"), "t.txt:1: its columns are separated by semicolons; use commas"),
        (azure_llm, AZURE.replace(",", "\t"), "t.txt:1: its columns are separated by tabs; use commas"),
        (azure_llm, AZURE.replace("ContextTokens", "ContextToken"),
         't.txt:1: no column "ContextTokens"; did you mean "ContextToken"?'),
        (azure_llm, AZURE.replace("110,27", "110"), "t.txt:4: the row has 2 cells; there must be 3"),
        (azure_llm, AZURE.replace("110,27", "-110,27"),
         't.txt:4: column ContextTokens: "-110" is negative; it must be a number of tokens'),
        (azure_llm, AZURE.replace("110,27", "1.5,27"),
         't.txt:4: column ContextTokens: "1.5" is not a whole number of tokens'),
        (azure_llm, AZURE.replace("110,27", "110,"),
         "t.txt:4: column GeneratedTokens: the number of tokens is missing"),
        (azure_llm, AZURE.replace("11-17 00:00:01", "13-17 00:00:01"),
         't.txt:4: column TIMESTAMP: "2023-13-17 00:00:01.0781490" is not a time of any day'),
        (azure_llm, AZURE.replace("2023-11-17 00:00:01", "16/11/2023 0:01"),
         't.txt:4: column TIMESTAMP: "16/11/2023 0:01.0781490" is not a time stamp such as '
         "2023-11-16 18:17:03.9799600"),
        (azure_llm, AZURE.replace("11-17 00:00:01", "11-16 00:00:01"),
         "t.txt:4: its time is earlier than that of line 3: rows must be in order of time; "
         "sort: true sorts them"),
        (azure_llm, AZURE.encode().replace(b"110", b"1\xff0"),
         "t.txt:4:30: is not UTF-8 text (byte 0xff); save it as UTF-8"),
        (azure_llm, AZURE.replace("110,27", '"110,27'),
         "t.txt:4: cannot be read as a row of cells: unexpected end of data"),
        (azure_llm, "5,4,3\n6,4,3\n",
         "t.txt:1: the first line is a row of numbers; there must be a header with "
         "TIMESTAMP, ContextTokens, GeneratedTokens"),
        (azure_llm, AZURE + "1" * 1_000_001, "t.txt:5: a line must be at most 1 MB"),
        (burstgpt, BURST.replace("45,", "-45,"), 't.txt:3: column Timestamp: "-45" is negative'),
        (burstgpt, BURST.replace("45,", "1e300,"), 't.txt:3: column Timestamp: must be at most 285 years; got "1e300"'),
        (burstgpt, SESSIONS.replace("2.5", "soon"), 't.txt:2: column Elapsed time: "soon" is not a number of seconds'),
        (mooncake, MOON.replace('"timestamp": 27', '"timestamp": -27'), 't.txt:2: timestamp: "-27" is negative'),
        (mooncake, MOON.replace('"timestamp": 27', '"time": 27'),
         't.txt:2: the key "timestamp" is missing; did you mean "time"?'),
        (mooncake, MOON.replace("1030", '"x"'), 't.txt:2: input_length: "x" is not a whole number of tokens'),
        (mooncake, MOON.replace("1030", "true"), 't.txt:2: input_length: "True" is not a whole number of tokens'),
        (mooncake, MOON.replace("1030", "9" * 12),
         't.txt:2: input_length: "999999999999" is not a whole number of tokens'),
        (mooncake, MOON.replace("[0, 1, 2]", "[0, -1, 2]"), "t.txt:2: hash_ids: must be a list of whole numbers"),
        (mooncake, MOON.replace("[0, 1, 2]}", "[0, 1"), "t.txt:2:78: is not a JSON object (Expecting ',' delimiter)"),
        (mooncake, "[" * 100_000, "t.txt:1: is not a JSON object (too deep or too long)"),
        (mooncake, "[1]", "t.txt:1: must be a JSON object with timestamp, input_length, output_length; got a list"),
        (request_table, "arrival,hash_ids\n0,1;x\n", "t.txt:2: column hash_ids: must be whole numbers separated by ;"),
        (request_table, "arrival,arrival\n0,1\n", "t.txt:1: column names must be unique"),
    ],
)  # fmt: skip
def test_complaints(complaints, reader, text, expected):
    assert complaints(reader, text) == [expected]


@pytest.mark.parametrize("reader", [azure_llm, burstgpt, mooncake, request_table])
def test_damaged_archives(complaints, file, reader):
    whole = gzip.compress(b"x" * 10 + bytes(range(1, 9)) * 1000)
    assert complaints(reader, whole[: len(whole) // 2]) == ["t.txt: is damaged: the compressed data end too early"]
    assert "t.txt: is damaged" in complaints(reader, whole[:20] + b"\x00\xff" * 20 + whole[60:])[0]
    assert complaints(reader, "arrival\n1\n", "t.csv.gz") == [
        "t.csv.gz: is not compressed with gzip, although its name ends in .gz"
    ]


def test_many_complaints_are_counted(complaints):
    found = complaints(azure_llm, AZURE + "\r\nx,1,1" * 30)
    assert len(found) == 21 and found[-1] == "t.txt: and 10 more problems"


def test_an_unknown_model_is_named(complaints):
    assert complaints(burstgpt, BURST, model="GPT4") == [
        't.txt: there is no request to the model "GPT4"; the models are "ChatGPT", "GPT-4"'
    ]


@examples(150)
@given(content=st.binary(max_size=300) | st.text(max_size=200).map(str.encode), number=st.integers(0, 3))
def test_any_bytes_end_in_a_table_or_a_sentence(tmp_path_factory, content, number):
    reader, begin = [(azure_llm, AZURE), (burstgpt, BURST), (mooncake, MOON), (request_table, "arrival\n1\n")][number]
    path = tmp_path_factory.getbasetemp() / "any_bytes.txt"
    path.write_bytes(begin.encode() + content)
    try:
        found = reader(path)
    except ScenarioError as error:
        assert all(problem.file == str(path) for problem in error.problems)
    else:
        assert (np.diff(found.arrival) >= 0).all()


# Lists of different lengths -------------------------------------------------------------------------------------


@examples(60)
@given(rows=st.lists(st.lists(st.integers(0, 2**62), max_size=4), max_size=8), data=st.data())
def test_ragged_is_a_list_of_lists(rows, data):
    ragged = Ragged.from_rows(rows)
    assert [row.tolist() for row in ragged] == rows and len(ragged) == len(rows)
    order = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=10) if rows else st.just([]))
    assert [row.tolist() for row in ragged.take(np.array(order, int))] == [rows[k] for k in order]
    cut = data.draw(st.integers(0, len(rows)))
    parts = Ragged.joined([Ragged.from_rows(rows[:cut]), Ragged.empty(2), Ragged.from_rows(rows[cut:])])
    assert [row.tolist() for row in parts] == [*rows[:cut], [], [], *rows[cut:]]


# The command line, and the public files ---------------------------------------------------------------------------


def test_inspect_validate_and_convert(file, tmp_path):
    source, target = file(MOON, "m.jsonl"), tmp_path / "out.csv"
    found = json.loads(command("trace", "inspect", source, "--format", "mooncake", "--json").stdout)
    assert found["requests"] == 3 and found["blocks"] == 6 and found["repeated_blocks"] == pytest.approx(2 / 6)
    assert found["tokens"]["prompt_tokens"]["max"] == 1030
    assert command("trace", "validate", source, "--format", "mooncake").stdout == f"{source}: valid; 3 requests\n"
    shown = command("trace", "inspect", source, "--format", "mooncake").stdout
    assert "33.3% seen before" in shown and "prompt tokens" in shown
    options = ("--option", "since=20 ms", "--option", "time_scale=2")
    assert command("trace", "convert", source, target, "--format", "mooncake", *options).exit_code == 0
    again = request_table(target)
    assert again.arrival.tolist() == [0.014, 0.021] and [ids.tolist() for ids in again.hash_ids] == [[0, 1, 2], [9]]
    refused = command("trace", "convert", source, tmp_path / "out.parquet", "--format", "mooncake")
    assert refused.exit_code == 2 and "must be CSV, such as out.csv; got" in refused.stderr
    wrong = command("trace", "validate", source, "--format", "azure_llm")
    assert wrong.exit_code == 3 and f'{source}:1: no column "TIMESTAMP"' in wrong.stderr


def test_converting_loses_nothing(file, tmp_path):
    for text, form, reader in ((AZURE, "azure_llm", azure_llm), (SESSIONS, "burstgpt", burstgpt)):
        source, target = file(text), tmp_path / f"{form}.csv"
        assert command("trace", "convert", source, target, "--format", form).exit_code == 0
        before, after = reader(source), request_table(target)
        assert before.arrival.tolist() == after.arrival.tolist()
        for name in ("prompt_tokens", "output_tokens"):
            assert before.extra[name].tolist() == after.extra[name].tolist()
        for name in ("class_", "user"):
            one, two = getattr(before, name), getattr(after, name)
            assert (one is None and two is None) or one.tolist() == two.tolist()


@public
def test_the_public_excerpts():
    found = azure_llm(PUBLIC / "azure_llm" / "AzureLLMInferenceTrace_code.csv")
    assert len(found) == 8819 and found.arrival[1] == 0.052 and found.arrival[-1] == 3435.948056
    prompts = mooncake(PUBLIC / "mooncake" / "conversation_trace_first1000.jsonl")
    assert len(prompts) == 1000 and prompts.arrival[-1] == 330 and not prompts.notes
    blocks = [len(ids) for ids in prompts.hash_ids]
    assert blocks == (-(-prompts.extra["prompt_tokens"] // 512)).tolist()
    burst = burstgpt(PUBLIC / "schema_samples" / "burstgpt" / "BurstGPT_1.csv")
    assert burst.arrival.tolist() == [5, 45, 118] and burst.class_.tolist() == ["ChatGPT", "ChatGPT", "GPT-4"]
    assert all(a <= b for a, b in pairwise(found.arrival.tolist()))
