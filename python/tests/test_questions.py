"""Questions and their answers."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import shardwright as sw
from shardwright import _native

SMALL = {
    "name": "small",
    "pattern": "AF",
    "depth": 4,
    "hidden": 64,
    "vocab": 256,
    "sequence": 128,
    "attention": {"heads": 4, "head_dim": 16},
    "mlp": {"ffn": 128},
}
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 1024,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}


def printed(*words: str) -> dict[str, object]:
    exit, text, _, _ = _native.answer([*words, "--json"])
    assert text is not None
    found: dict[str, object] = json.loads(text)
    return found


@pytest.fixture(scope="module")
def case() -> sw.Case:
    return sw.case("nam56r", on="8xH200", tp=2)


def test_a_fit_is_what_the_command_prints(case: sw.Case) -> None:
    fit = case.fit()
    assert fit.to_dict() == printed("fit", "nam56r", "--tp", "2", "--on", "8xH200")
    assert fit.fits and fit.verdict == "fits" and fit.device == "H200"
    assert fit.layout.tp == 2 and fit.layout.world == 8 and fit.derived["dp"]
    assert fit.worst in fit.rank_classes and fit.worst.ranks == range(0, 8)
    assert sum(line.bytes for line in fit.worst.lines) > 10 << 30
    assert {phase.phase for phase in fit.worst.phases} >= {"model", "optimizer"}
    assert fit.step is not None and fit.step.low is not None and fit.step.low < fit.step.seconds
    assert fit.levers and fit.gives_up
    first, second = repr(fit).split("\n")
    assert "fits" in first and "tp 2" in second


def test_a_step_without_a_price_is_none() -> None:
    fit = sw.case("llama3-8b", on="8xGB10").fit()
    assert fit.fits and fit.step is None and "step" not in repr(fit)
    row = sw.sweep("llama3-8b", "8xGB10", over={"mbs": [1]}).table[0]
    assert row["fits"] and row["seconds"] is None


def test_what_does_not_fit_is_an_answer_until_it_is_to_be_launched() -> None:
    case = sw.case("deepseek-v3", on="8xH200")
    fit = case.fit()
    assert not fit.fits and fit.headroom_bytes < 0
    assert fit.findings[-1].rule == "fit/does-not-fit"
    with pytest.raises(sw.DoesNotFit) as caught:
        case.launch("launch")
    assert caught.value.findings[0].rule == "launch/memory" and not Path("launch").exists()
    plan = case.plan()
    assert not plan.fits and plan.best is None and plan.step is None
    with pytest.raises(ValueError, match="no layout fits"):
        _ = plan.case


def test_a_plan_goes_on_as_a_case() -> None:
    plan = sw.plan("nam56r", on="8xH200", top=2)
    assert plan.fits and plan.best is not None and plan.step is not None
    fit = plan.case.fit()
    assert fit.step is not None and fit.step.seconds == plan.best.seconds
    assert fit.headroom_bytes == plan.best.headroom_bytes and fit.layout == plan.best.layout
    assert len(plan.top) == 2 and plan.frontier and sum(plan.rejected.values()) > 1000
    assert sw.plan("nam56r", on="8xH200", tp=2, mode="nemo_native").case.flags["tp"] == "2"


def test_every_line_of_an_answer_reads_back() -> None:
    case = sw.case("nam56r", on="8xH200")
    words = "nam56r --tp 2 --no-sp --ce-fusion --engine-args '--overlap-grad-reduce' --boundaries 1,2 --with mtp"
    again = case.of_words(words + " --on 16xH100")
    assert again.on == "16xH100"
    told = {"tp": "2", "sp": False, "ce_fusion": True, "engine_args": ["--overlap-grad-reduce"]}
    assert again.flags == {**told, "boundaries": "1,2", "with_": "mtp"}


def test_the_other_questions(case: sw.Case) -> None:
    assert case.check() and case.check().legal
    splits = case.splits(rank=1)
    assert splits.rank == 1 and splits.layout.mode == "nemo_native", "the job that is priced"
    assert splits.rank_params == case.fit().worst.params
    assert all(len(tensor.logical) == len(tensor.per_rank) for tensor in splits.tensors)
    staged = sw.case("nam56r", on="8xH200", tp=2, pp=2)
    assert [chunk.layers for chunk in staged.stages().chunks] == [26, 26]
    mesh = staged.mesh(rank=3)
    assert mesh.world == 8 and mesh.degrees["pp"] == 2 and 3 in mesh.groups["tp"] and mesh.coordinates["tp"] == 1
    params = case.params()
    assert params.total == sum(params.by_family.values()) == sum(params.by_surface.values())
    assert sw.case("nam56r", tp=2).rehearse(steps=1).passes
    schedule = staged.schedule()
    step = staged.fit().step
    assert step is not None and schedule.seconds == pytest.approx(step.seconds)
    assert [stage.stage for stage in schedule.stages] == [0, 1]
    passes = [event for event in schedule.events if event.track == "schedule" and event.microbatch is not None]
    assert passes and all(0 <= event.start < event.end <= schedule.seconds * 1.001 for event in passes)


def test_a_rehearsal_with_a_fault_is_a_no() -> None:
    wrong = sw.case("nam56r", tp=2).rehearse(steps=1, inject="unsummed:tp")
    assert not wrong and not wrong.passes and "wrong" in repr(wrong)


def test_an_illegal_layout_is_an_answer_of_check_and_a_refusal_elsewhere() -> None:
    case = sw.case("nam56r", tp=16, world=160)
    check = case.check()
    assert not check and not check.legal
    heads = next(finding for finding in check.findings if finding.rule == "tp/heads")
    assert heads.fix_key == "tp" and 8 in heads.fix_values and heads.where == "attention" and heads.hint
    with pytest.raises(sw.Refused) as caught:
        sw.case("nam56r", on="160xH200", tp=16).fit()
    assert "tp/heads" in {finding.rule for finding in caught.value.findings} and "[tp/heads]" in str(caught.value)


def test_a_launch_is_written_whole(case: sw.Case) -> None:
    launch = case.launch("launch", scheduler="slurm")
    assert {file.path for file in launch.files} <= {path.name for path in Path("launch").iterdir()}
    assert "job.sbatch" in {file.path for file in launch.files}
    assert any(argument.flag == "--tensor-model-parallel-size" for argument in launch.arguments)
    assert launch.environment and launch.command
    with pytest.raises(sw.Refused):
        case.launch("launch")


def test_a_sweep_is_a_table_with_refusals_in_it() -> None:
    sweep = sw.sweep("nam56r", "8xH200", over={"tp": [1, 2, 3], "mbs": [1, 2]})
    assert len(sweep.table) == 6 and sweep.table.columns[:3] == ("on", "tp", "mbs")
    refused = [row for row in sweep.table if row["verdict"] == "refused"]
    assert len(refused) == 2 and "tp/heads" in refused[0]["refused_by"]
    assert sweep.best is not None and sweep.best["fits"]
    alone = sw.case("nam56r", on="8xH200", tp=2, mbs=2).fit()
    assert next(row for row in sweep.table if (row["tp"], row["mbs"]) == (2, 2))["total_bytes"] == alone.total_bytes


def test_recipes_come_from_names_files_dicts_and_configs(root: Path) -> None:
    built_in = sw.Recipe.load("nam56r")
    assert built_in == sw.Recipe.load("nam56r") and built_in.name == "nam56r"
    file = sw.Recipe.load(root / "data/recipes/nam56r.toml")
    assert file.params().total == built_in.params().total
    small = sw.Recipe.load(SMALL)
    by_hand = 2 * 256 * 64 + 2 * (4 * 64 * 64 + 64) + 2 * (3 * 64 * 128 + 64) + 64
    assert small.name == "small" and small.params().total == by_hand and f"{by_hand:,}" in repr(small)

    class Configured:
        def to_dict(self) -> dict[str, object]:
            return dict(CONFIG, _name_or_path="somebody/tiny-llama")

    config = sw.Recipe.from_config(Configured())
    assert config.name == "tiny-llama"
    assert config.params() == sw.Recipe.load({**CONFIG, "_name_or_path": "tiny-llama"}).params()
    Path("config.json").write_text(json.dumps(CONFIG))
    assert sw.Recipe.load("config.json").params().total == config.params().total
    assert sw.case(config, on="8xH200").fit().fits
    assert sw.plan(config, on="8xH200", engine="fsdp2").case.fit().fits


def test_wrong_recipes_say_where() -> None:
    with pytest.raises(sw.Refused, match="did you mean `nam56r`"):
        sw.Recipe.load("nam56")
    with pytest.raises(sw.Refused) as caught:
        sw.Recipe.load({**SMALL, "hiden": 64, "depth": "four"})
    assert len(caught.value.findings) >= 2, "all mistakes at once"
    with pytest.raises(TypeError, match="a name, a path or a dict"):
        sw.Recipe.load(7)  # type: ignore[arg-type]


def test_unknown_keywords_are_suggested() -> None:
    for wrong, right in {"tensor_parallel": "`tp`", "headrom": "`headroom`"}.items():
        with pytest.raises(sw.Usage, match=right) as caught:
            sw.case("nam56r", on="8xH200", **{wrong: 2})
        assert f"`{wrong}`" in str(caught.value)
    with pytest.raises(sw.Usage, match="did you mean `megatron`"):
        sw.case("nam56r", on="8xH200", engine="megatorn").fit()
    with pytest.raises(sw.Refused, match="H201"):
        sw.case("nam56r", on="8xH201").fit()


def test_answers_do_not_change_and_travel() -> None:
    fit = sw.case("nam56r", on="8xH200", tp=2).fit()
    with pytest.raises(AttributeError):
        fit.verdict = "never"  # type: ignore[misc]
    fit.to_dict()["verdict"] = "never"
    assert fit.fits
    assert pickle.loads(pickle.dumps(fit)) == fit
    plan = sw.plan(SMALL, on="8xH200")
    assert pickle.loads(pickle.dumps(plan)).case == plan.case


def test_notebooks_are_shown_text_that_stays_text() -> None:
    hostile = sw.Recipe.load({**SMALL, "name": "<script>alert(1)</script>"})
    case = sw.case(hostile, on="8xH200")
    for answer in (case.fit(), case.params(), case.splits(), case.check(), case.plan(), case.stages()):
        shown = answer._repr_html_()
        assert "<script" not in shown and "&lt;script" in shown
    for answer in (case.fit(), case.params(), case.mesh(), case.plan(), case.schedule()):
        assert "<svg" in answer._repr_html_(), answer
    assert "<table" in case.splits()._repr_html_() and "<table" in case.stages()._repr_html_()


def test_frames() -> None:
    fit = sw.case("nam56r", on="8xH200", tp=2).fit()
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    frame = fit.to_pandas()
    assert isinstance(frame, pandas.DataFrame) and frame["bytes"].sum() == sum(fit.table.column("bytes"))
    assert isinstance(fit.to_polars(), polars.DataFrame) and fit.to_polars().height == len(fit.table)
    sweep = sw.sweep("nam56r", "8xH200", over={"tp": [2, 3]})
    assert sweep.to_polars().height == sweep.to_pandas().shape[0] == 2
    assert sweep.table.to_csv().splitlines()[0].startswith("on,tp,")


def test_frames_that_are_not_there_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setitem(sys.modules, "polars", None)
    table = sw.Table([{"a": 1}])
    with pytest.raises(ImportError, match="pip install pandas"):
        table.to_pandas()
    with pytest.raises(ImportError, match="pip install polars"):
        table.to_polars()
