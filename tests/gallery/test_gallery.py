"""The gallery: its entries are whole, their short cases give what was recorded, and mistakes are told in sentences."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import hetsim as hs
from hetsim.errors import RunError, ScenarioError, UnknownName
from hetsim.gallery import entry as catalogue
from hetsim.gallery import outcome as outcomes
from hetsim.theory import mmc, mmck

TOP = Path(__file__).parents[2]
MEASURED = TOP.parent / "shared" / "data" / "hetero_dag" / "2_resources"
NAMES = sorted(catalogue.shipped())
SLOW = {"erlang", "naor", "fgd", "helios_simulator", "async_inference", "gavel", "pollux", "shockwave", "rlscheduler",
        "deeprm", "braun", "vtc", "dagor"}  # fmt: skip
EXPLAINED = {"fgd", "shockwave", "serverlessllm"}
"""Entries with figures outside the tolerance; the page says why in numbers."""
CLOSE = 1e-9


def marked(name):
    return pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])


@pytest.mark.quick(9)
@pytest.mark.parametrize("name", NAMES)
def test_an_entry_is_whole(name):
    entry = catalogue.entry(name)
    entry.check()
    assert list(entry.short_cases()), "CI has to run something of it"
    assert len(outcomes.recorded(entry).recorded), "it was never run: hetsim gallery NAME --record"


@pytest.mark.quick(2)
@pytest.mark.by_turns(4)
@pytest.mark.parametrize("name", [marked(name) for name in NAMES])
def test_the_short_case_gives_what_was_recorded(name):
    """To the last digits that are kept: replications of the short case are the first of the whole."""
    entry = catalogue.entry(name)
    kept = {(row["table"], row["case"], row["value"]): row["runs"].split()
            for row in outcomes.recorded(entry).recorded.to_dict("records")}  # fmt: skip
    for row in outcomes.run(entry, short=True).recorded.to_dict("records"):
        runs = row["runs"].split()
        before = kept[row["table"], row["case"], row["value"]][: len(runs)]
        assert [float(run) for run in runs] == pytest.approx([float(run) for run in before], rel=CLOSE), row["case"]


@pytest.mark.gallery
@pytest.mark.parametrize("name", NAMES)
def test_the_whole_entry_gives_what_was_recorded(name):
    entry = catalogue.entry(name)
    found = outcomes.run(entry)
    kept = outcomes.recorded(entry).recorded.set_index(["table", "case", "value"])["runs"]
    for row in found.recorded.to_dict("records"):
        before = kept.get((row["table"], row["case"], row["value"]))
        if before is not None:
            assert [float(run) for run in row["runs"].split()] == pytest.approx(
                [float(run) for run in before.split()], rel=CLOSE
            )
    told = outcomes.sentence(found.comparison())
    if name not in EXPLAINED:
        assert "outside" not in told, told


@pytest.mark.slow
def test_the_page_is_made_of_what_was_recorded():
    done = subprocess.run(
        [sys.executable, str(TOP / "docs" / "make_gallery.py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_step_times_of_splitwise_are_medians_of_what_was_measured():
    folder = TOP / "scenarios" / "hetsim_scenarios" / "published" / "splitwise"
    measured, told = (pd.read_csv(folder / name) for name in ("perf_model.csv", "medians.csv"))
    assert (measured["batch_tokens"] == measured["prompt_size"] * measured["batch_size"]).all()
    medians = measured.groupby("batch_tokens")[["prompt_time", "token_time"]].median()
    assert medians.index.to_list() == told["batch_tokens"].to_list()
    assert medians.to_numpy() == pytest.approx(told.to_numpy()[:, 1:])
    small, large = medians.index[:2]
    slope = (medians["token_time"][large] - medians["token_time"][small]) / (large - small)
    token = medians["token_time"][small] - slope * (small - 1)
    step = hs.load("splitwise").model.workload[0].service.step
    assert 1e3 * step.decode.fixed == pytest.approx(token, rel=1e-12)


def test_figures_of_theory_are_those_of_the_formulas():
    entry = catalogue.entry("erlang")
    assert entry.figures["wait"]["wait"][0] == pytest.approx(mmc(13.7, 1.0, 16).wait_mean, rel=1e-5)
    figures = catalogue.entry("naor").figures["turned away"]
    for row in figures.to_dict("records"):
        assert row["refused"] == pytest.approx(100 * mmck(0.8, 1.0, 1, int(row["threshold"])).loss, abs=1e-4)


def test_figures_stated_in_texts_are_those_recorded():
    entry = catalogue.entry("rlscheduler")
    found = outcomes.recorded(entry).comparison()
    mean = found[found["table"] == "without backfilling"].set_index("policy")
    texts = f"{entry.expected.property} {hs.load('rlscheduler').description}"
    assert (
        f"is {mean.hetsim['SJF sorted again']:.0f} under SJF and {mean.hetsim['F1 sorted again']:.0f} under F1" in texts
    )
    assert f"the paper has {mean.paper['SJF']:.0f} and {mean.paper['F1']:.0f}" in texts
    assert mean.hetsim["WFP3 of its paper"] < mean.hetsim["FCFS"] < mean.hetsim["WFP3"]


@pytest.mark.slow
def test_figures_stated_of_the_scenario_rlscheduler_are_those_of_a_run():
    texts = f"{catalogue.entry('rlscheduler').expected.property} {hs.load('rlscheduler').description}"
    first = hs.run("rlscheduler").metric("bsld_swf_mean"), hs.run("rlscheduler", policy="sjf").metric("bsld_swf_mean")
    assert f"under sjf is {first[0]:.0f}" in texts
    assert f"block), it is {first[1]:.0f}" in texts


def test_figures_stated_of_fgd_are_those_recorded():
    entry = catalogue.entry("fgd")
    found = outcomes.recorded(entry).comparison()
    both = found[(found["table"] == "both") & (found["value"] == "alloc_at_130")].set_index("policy")
    for own, theirs in (("gpu_packing", "GpuPacking"), ("gpu_clustering", "GpuClustering")):
        stated = f"{both.hetsim[own]:.1f} % where {theirs} has {both.paper[theirs]:.1f} %"
        assert stated in entry.expected.differences


def test_figures_stated_of_shockwave_are_those_recorded():
    entry = catalogue.entry("shockwave")
    found = outcomes.recorded(entry).comparison().set_index(["table", "policy"])["hetsim"]
    response, makespan = found["response", "Gavel"], found["makespan", "Gavel"]
    assert f"where hetsim has {response:,.0f} s and {makespan:,.0f} s" in entry.expected.property


def test_figures_stated_of_deeprm_are_those_recorded():
    entry = catalogue.entry("deeprm")
    found = outcomes.recorded(entry).comparison().set_index(["load", "policy"])["hetsim"]
    full = found["130"]
    text = " ".join(hs.load("deeprm").description.split())
    assert f"{full['DeepRM']:.1f} under a policy that was learned, {full['SJF']:.1f} under an sjf that skips" in text
    assert f"{full['Packer']:.1f} under a packer" in text and f"a strict sjf has {full['strict SJF']:.1f}" in text
    assert f"is {full['strict SJF']:.2f} instead of {full['SJF']:.2f}" in entry.expected.property
    most = found["180"]
    assert f"({most['strict SJF']:.2f} compared with {most['DeepRM']:.2f})" in entry.expected.property
    assert all(abs(found[load]["Tetris"] - found[load]["SJF"]) < 0.01 for load in ("50", "90"))
    assert all(found[load]["DeepRM"] < found[load]["Tetris"] < found[load]["SJF"] for load in ("130", "180"))


def test_figures_stated_of_pollux_are_those_recorded():
    entry = catalogue.entry("pollux")
    found = outcomes.recorded(entry).comparison()
    ran = found[found["hetsim"].notna()]
    assert ran.groupby("table").size().to_dict() == {"Optimus": 4, "Pollux": 4, "Tiresias": 4}
    ratio = 100 * (ran.hetsim / ran.paper - 1)[ran["table"] == "Pollux"]
    text = " ".join(entry.expected.differences.split())
    assert f"between {-ratio.min():.1f} % below and {ratio.max():.1f} % above" in text


# An entry of one's own ------------------------------------------------------------------------------------------------

SCENARIO = """\
name: mine
description: Three tasks on a core.
replications: {replications}
cluster: {{nodes: [{{cpus: 1}}]}}
workload: [{{trace: {{format: tasks, path: mine/tasks.csv}}}}]
policy: fcfs
sweep: {{policy: [fcfs, sjf]}}
"""
EXPECTED = """\
title: Waits of three tasks
paper: By hand
source: this test
license: Apache-2.0
notice: NOTICE
tables:
  - name: waits
    figures: figures.csv
    axes:
      policy: {values: {FCFS: {policy: fcfs}, SJF: {policy: sjf}}}
    values: {wait: {metric: wait_mean}}
    tolerance: {absolute: 0.001}
"""


def own(tmp_path, expected=EXPECTED, figures="policy,wait\nFCFS,4.666667\nSJF,2.333333\n", replications=1, notice=True):
    """A scenario, and the folder next to it."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (tmp_path / "mine.yaml").write_text(SCENARIO.format(replications=replications))
    (folder / "tasks.csv").write_text("id,arrival,cpu_time\na,0,4\nb,0,6\nc,0,1\n".replace("a,0,4", "a,0,4"))
    (folder / "expected.yaml").write_text(expected)
    (folder / "figures.csv").write_text(figures)
    if notice:
        (folder / "NOTICE").write_text("Theirs.\n")
    return folder


def told(tmp_path, **changes):
    with pytest.raises(ScenarioError) as error:
        catalogue.entry(own(tmp_path, **changes)).check()
    return str(error.value)


def test_a_scenario_and_its_expected_file_are_an_entry(tmp_path):
    """fcfs: 0, 4, 10; sjf: 0, 1, 5."""
    entry = catalogue.entry(own(tmp_path, figures="policy,wait\nFCFS,4.666667\nSJF,2\n"))
    entry.check()
    found = outcomes.run(entry).comparison()
    assert found["within"].tolist() == [True, True]
    assert outcomes.sentence(found) == "2 of 2 figures are within the tolerance"


def test_a_figure_that_is_missed_is_told(tmp_path):
    entry = catalogue.entry(own(tmp_path, figures="policy,wait\nFCFS,9\nSJF,2\n"))
    found = outcomes.run(entry).comparison()
    assert found["within"].tolist() == [False, True]
    assert "the largest deviation is FCFS, wait: 4.67, paper 9" in outcomes.sentence(found)


@pytest.mark.parametrize(("bound", "within"), [(1.5, True), (1.49, False)])
def test_a_mean_ratio_is_that_of_the_whole_table(tmp_path, bound, within):
    """Waits of 14/3 and 2 s are 2 times and once the best known: in the mean 1.5."""
    expected = EXPECTED.replace("{absolute: 0.001}", f"{{mean_ratio: {bound}}}")
    entry = catalogue.entry(own(tmp_path, expected, f"policy,wait\nFCFS,{7 / 3}\nSJF,2\n"))
    found = outcomes.run(entry).comparison()
    assert found["within"].tolist() == [within, within]
    assert outcomes.ratios(found) == pytest.approx((1.5, 2.0))
    part = outcomes.run(entry, {"policy": ["FCFS"]}).comparison()
    assert part["within"].isna().all()
    text = hetsim(entry.path).output
    assert f"a mean ratio of at most {bound:g} to the best known; mean 1.5000, largest 2.0000" in text
    assert "+100.00 %" in text


def test_what_comes_out_is_kept_and_read_again(tmp_path):
    entry = catalogue.entry(own(tmp_path))
    outcomes.record(outcomes.run(entry, {"policy": ["SJF"]}))
    assert "1 not run" in outcomes.sentence(outcomes.recorded(entry).comparison())
    outcomes.record(outcomes.run(entry, {"policy": ["FCFS"]}))
    found = outcomes.recorded(entry).comparison()
    assert found["policy"].tolist() == ["FCFS", "SJF"]
    assert found["hetsim"].tolist() == pytest.approx([14 / 3, 2.0])


@pytest.mark.parametrize("workers", [2])
@pytest.mark.slow
def test_workers_do_not_change_what_comes_out(tmp_path, workers):
    entry = catalogue.entry(own(tmp_path))
    one, several = outcomes.run(entry), outcomes.run(entry, workers=workers)
    assert one.recorded.drop(columns="seconds").equals(several.recorded.drop(columns="seconds"))


def test_a_worker_that_is_killed_is_a_sentence_of_ours(tmp_path, monkeypatch):
    """As the system does that runs out of memory."""
    monkeypatch.setattr(outcomes, "ran_case", abort)
    with pytest.raises(RunError, match="a worker process was killed, maybe for lack of memory: use fewer --workers"):
        outcomes.run(catalogue.entry(own(tmp_path)), workers=2)


def abort(entry, case, count):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_policy_that_the_entry_does_not_run_is_refused(tmp_path):
    text = told(tmp_path, figures="policy,wait\nFCFS,5\nSJF,2\nLJF,7\n")
    assert "expected.yaml:10:" in text
    assert 'the figures have policy "LJF", but values does not state how it is run; values has FCFS, SJF' in text


def test_a_policy_without_a_figure_is_refused(tmp_path):
    text = told(tmp_path, figures="policy,wait\nFCFS,5\n")
    assert 'if it has no figures, use extra_values' in text


def test_a_policy_that_the_scenario_does_not_propose_is_refused(tmp_path):
    text = told(tmp_path, expected=EXPECTED.replace("{policy: sjf}", "{policy: ljf}"))
    assert "the policy of policy SJF is not one of the scenario" in text


def test_other_seeds_than_replications_are_refused(tmp_path):
    figures = "policy,seed,wait\n" + "".join(f"{policy},{seed},3\n" for policy in ("FCFS", "SJF") for seed in range(3))
    expected = EXPECTED.replace("    axes:", "    seeds: seed\n    axes:")
    assert "the figures have 3 seeds" in told(tmp_path, expected=expected, figures=figures, replications=5)


def test_a_missing_notice_is_told(tmp_path):
    text = told(tmp_path, notice=False)
    assert "expected.yaml:5:1: notice: " in text
    assert "inputs under Apache-2.0 ship with their notice" in text


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("notice: NOTICE\n", "", "ship with the notice of their license; name its file"),
        ("figures: figures.csv", "figures: none.csv", "none.csv does not exist"),
        ("values: {wait", "values: {waits", 'have no column "waits"; they have policy, wait'),
        ("{absolute: 0.001}", "{absolute: 0.001, relative: 0.1}", "give one of absolute, relative"),
        ("{absolute: 0.001}", "{deviations: 2}", "deviations are over the authors' seeds; give seeds, their column"),
        ("title:", "titel:", "unknown key"),
        ("{metric: wait_mean}", "{metric: wait_mean, from: 1 s}", "a window must have both from and to"),
    ],
)
def test_mistakes_in_an_expected_file(tmp_path, old, new, message):
    assert message in told(tmp_path, expected=EXPECTED.replace(old, new, 1))


def test_figures_that_are_no_numbers(tmp_path):
    assert 'column "wait" must have numbers only' in told(tmp_path, figures="policy,wait\nFCFS,x\nSJF,1\n")


def test_an_unknown_entry_gets_a_suggestion():
    with pytest.raises(UnknownName, match='did you mean "rlscheduler"'):
        catalogue.entry("rlscheduller")


# Places, and inputs that do not ship ----------------------------------------------------------------------------------

PLACES = EXPECTED.replace("{absolute: 0.001}", "{shape: true}")


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("figures", "within"), [("FCFS,2\nSJF,1\n", [True, True]), ("FCFS,1\nSJF,2\n", [False, False])]
)
def test_places_are_judged_by_the_order_of_what_comes_out(tmp_path, figures, within):
    entry = catalogue.entry(own(tmp_path, expected=PLACES, figures=f"policy,wait\n{figures}"))
    found = outcomes.run(entry).comparison()
    assert found["within"].tolist() == within
    assert found["difference"].isna().all()
    told = outcomes.sentence(found)
    assert told.startswith("2 of 2" if within[0] else "0 of 2 figures are within the tolerance; the rank "
                                                      "differs from the paper")
    assert "place 2" in hetsim(entry.folder).stdout


INPUTS = EXPECTED.replace(
    "tables:", "inputs: [{file: more.csv, url: 'https://example.org', sha256: SHA}]\ntables:"
).replace(
    "      policy: {values", "      file: {each: {set: {workload.0.trace.path: '{inputs}/{}'}}}\n      policy: {values"
)
MORE = "id,arrival,cpu_time\na,0,4\nb,0,6\nc,0,1\n"
SHA = hashlib.sha256(MORE.encode()).hexdigest()


def with_inputs(tmp_path, sha=SHA):
    figures = "file,policy,wait\n" + "".join(f"{file},FCFS,4.666667\n" for file in ("tasks.csv", "more.csv"))
    expected = INPUTS.replace("SHA", sha).replace(", SJF: {policy: sjf}", "")
    return own(tmp_path, expected=expected, figures=figures)


def test_a_case_without_its_input_is_left_out_and_told(tmp_path):
    notes = []
    found = outcomes.run(catalogue.entry(with_inputs(tmp_path)), told=notes.append).comparison()
    assert outcomes.sentence(found) == "1 of 1 figures are within the tolerance, 1 not run"
    assert "more.csv does not ship; get it from https://example.org and give its folder with --inputs" in notes[0]


def test_a_folder_with_inputs_is_used_for_all_that_names_it(tmp_path):
    folder = with_inputs(tmp_path)
    there = tmp_path / "downloads"
    there.mkdir()
    for name in ("tasks.csv", "more.csv"):
        (there / name).write_text(MORE)
    done = hetsim(folder, "--inputs", there, "-q")
    assert done.exit_code == 0, done.output
    assert "2 of 2 figures are within the tolerance" in done.stdout


def test_an_input_with_another_content_is_refused(tmp_path):
    folder = with_inputs(tmp_path, sha="0" * 64)
    (folder / "more.csv").write_text(MORE)
    done = hetsim(folder)
    assert done.exit_code == 3
    assert f"; got {SHA}" in " ".join(done.output.split())


def test_an_axis_that_a_table_lacks_leaves_the_table_out(tmp_path):
    second = """\
  - name: orders
    figures: [{order: SJF, wait: 2}]
    axes: {order: {values: {SJF: {policy: sjf}}}}
    values: {wait: {metric: wait_mean}}
    tolerance: {absolute: 0.001}
"""
    entry = catalogue.entry(own(tmp_path, expected=EXPECTED + second))
    assert {case.table for case in entry.cases({"order": ["SJF"]})} == {"orders"}
    assert {case.table for case in entry.cases()} == {"waits", "orders"}


def test_heft_of_a_few_lines_gives_the_figures_of_the_cholesky_graphs():
    from oracle.heft import length, read

    entry = catalogue.entry("cholesky")
    (generated,) = entry.figures["generated"]["length"]
    assert length(read(entry.folder / "generated-10.txt"), (16, 4)) == pytest.approx(generated, abs=1e-9)
    for graph, wanted in entry.figures["measured"][["graph", "length"]].itertuples(index=False):
        path = MEASURED / f"{graph}.txt"
        if path.exists():
            assert length(read(path), (16, 4)) == pytest.approx(wanted, abs=1e-9)


# The command ----------------------------------------------------------------------------------------------------------


def hetsim(*arguments):
    from click.testing import CliRunner

    from hetsim.cli import hetsim as program

    return CliRunner().invoke(program, ["gallery", *map(str, arguments)])


@pytest.mark.slow
def test_the_command_lists_what_was_recorded():
    done = hetsim()
    assert done.exit_code == 0
    for name in NAMES:
        assert name in done.output
    listed = json.loads(hetsim("--json").stdout)
    assert [one["name"] for one in listed] == NAMES


def test_the_command_runs_an_entry_of_ones_own(tmp_path):
    folder = own(tmp_path, figures="policy,wait\nFCFS,4.666667\nSJF,2\n")
    done = hetsim(folder, "--out", tmp_path / "out")
    assert done.exit_code == 0
    assert "2 of 2 figures are within the tolerance" in done.stdout
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["mine-waits.png", "mine.csv"]


def test_the_exit_code_tells_of_a_figure_outside(tmp_path):
    done = hetsim(own(tmp_path, figures="policy,wait\nFCFS,9\nSJF,2\n"), "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)[0]["figures"][0]["within"] is False


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--short"], 2, "--short needs an entry to run"),
        (["topcuoglu", "--all"], 2, "--all runs every entry"),
        (["topcuoglu", "--case", "policy"], 2, "--case must be AXIS=VALUE; got"),
        (["topcuoglu", "--case", "polcy=HEFT"], 2, 'did you mean "policy"'),
        (["topcuoglu", "--case", "policy=HEFTT"], 2, 'did you mean "HEFT"'),
        (["topcuoglu", "--record", "--short"], 2, "--record saves the figures of complete runs; leave out --short and"),
        (["nowhere/expected.yaml"], 3, "the file does not exist"),
    ],
)
def test_wrong_usage(arguments, code, message):
    done = hetsim(*arguments)
    assert done.exit_code == code
    assert message in done.output


@pytest.mark.nightly
@pytest.mark.parametrize("backfill", [0, 1])
@pytest.mark.parametrize(("column", "rule"), [
    ("FCFS", "fcfs"), ("WFP3", "wfp3"), ("UNI", "unicep"), ("SJF", "sjf"), ("F1", "f1"),
])  # fmt: skip
def test_utilizations_of_the_paper_end_with_the_last_start(backfill, column, rule):
    """The property of rlscheduler states it; none of these figures was used to make the scenario."""
    folder = catalogue.entry("rlscheduler").folder
    published, windows = (pd.read_csv(folder / name) for name in ("tables_5_and_6.csv", "windows.csv"))
    published = published[(published["trace"] == "Lublin-1") & (published["metric"] == "utilization")]
    scheduler = {"name": rule, "discipline": "keep_backfill" if backfill else "keep"}
    scheduler |= {"formula": "schedgym"} if rule in ("wfp3", "unicep") else {}
    shares = []
    for row in windows[windows["trace"] == "Lublin-1"].itertuples():
        cut = {"workload.jobs.skip": int(row.first_job_index), "workload.jobs.count": int(row.jobs)}
        run = hs.run("rlscheduler", policy={"scheduler": scheduler}, overrides=cut)
        span = run.launches["decided"].max() - run.tasks["arrival"].min()
        shares.append(run.metric("cpu_utilization") * run.end / span)
    assert round(sum(shares) / len(shares), 3) == published.set_index("backfill")[column][backfill]


@pytest.mark.slow
def test_the_front_pages_count_what_was_recorded():
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("make_gallery", TOP / "docs" / "make_gallery.py")
    made = module_from_spec(spec)
    spec.loader.exec_module(made)

    def both(name):
        return catalogue.entry(name), outcomes.recorded(catalogue.entry(name))

    for page, link in made.COUNTING:
        assert made.counts(link) in page.read_text(encoding="utf-8"), "python docs/make_gallery.py"
    used, others = made.halves(catalogue.entry("fgd"), made.judged_rows(*both("fgd")))
    shown = (len(others), int((~others["within"].astype(bool)).sum()))
    assert f"one figure of {shown[0]} is outside" in catalogue.entry("fgd").expected.differences and shown[1] == 1
    assert set(others["trace"]).isdisjoint({"default", "cpu050", "gpuspec25"})
    used, others = made.halves(catalogue.entry("vtc"), made.judged_rows(*both("vtc")))
    assert made.tally(used) == (13, 16) and not len(others)
    servers = made.measured_servers()
    page = (TOP / "docs" / "background" / "measured-servers.md").read_text(encoding="utf-8")
    medians = [tuple(f"{100 * part[name].median():.1f} %" for name in ("token", "first"))
               for _, part in servers.groupby("unseen")]  # fmt: skip
    for rows, before, (token, first) in (("1,371", r"[^|]*\| ", medians[0]), ("1,000", "", medians[1])):
        assert re.search(rf"\| all \| {rows} \| {before}{token} \|[^|]*\|[^|]*\| {first} \|", page), medians
    assert len(servers) == 1587 + 908
