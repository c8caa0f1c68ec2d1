"""Task types from a model behind HTTP: the paper's examples, two passes, going on, training."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from arise import assembly
from arise.errors import ConfigError
from arise.tasks.__main__ import main
from arise.tasks.corpus import load_corpus
from arise.tasks.tags import read_tags, with_tags
from arise.tasks.taxonomy import read_taxonomy
from arise.validation import validate
from runs import ROOT, compose_config
from stub_judge import StubJudge

# The paper's Table 5: what each task asks for, and its task types.
TABLE_5 = {
    "bibliography": (
        "Check each entry of refs.bib against the publication records in records/ and list those "
        "whose venue or year is wrong in report.json.",
        ["Evidence conformance assessment"],
    ),
    "clinical-study": (
        "Assess the case-control study in study.md by the Newcastle-Ottawa guidelines in nos.md. "
        "Write the score of each item, with the sentence that supports it, to scores.json.",
        ["Evidence conformance assessment"],
    ),
    "part-mass": (
        "part.stl is in millimetres and holds loose fragments. Isolate the largest component, take "
        "its volume, convert it and write the mass in kilograms for 2.7 g/cm3 to mass.txt.",
        ["3D asset analysis", "Unit harmonization"],
    ),
    "python-build": (
        "The package in src/ no longer builds under the installed Python. Find out why, patch only "
        "what is needed and make the failing tests pass.",
        ["Artifact diagnosis and repair"],
    ),
    "deploy-command": (
        "Look at the branch configuration and the local changes and write the deployment command "
        "that fits to command.txt. Do not run it.",
        ["Procedure and plan synthesis"],
    ),
}
NEAR = ["Deployment and release execution", "Procedure and plan synthesis"]


def write_corpus(folder: Path) -> Path:
    for name, (instruction, _) in TABLE_5.items():
        task = folder / name
        for part in ("tests", "environment", "solution"):
            (task / part).mkdir(parents=True)
        (task / "task.toml").write_text('[metadata]\ncategory = "x"\ntags = ["keyword"]\n')
        (task / "instruction.md").write_text(instruction)
        (task / "environment" / "Dockerfile").write_text("FROM ubuntu:24.04\n")
        (task / "environment" / f"{name}.dat").write_text("data")
        (task / "tests" / "test.sh").write_text("SECRET-TEST\n")
        (task / "tests" / "hidden_expected.json").write_text("SECRET-TEST\n")
        (task / "solution" / "solve.sh").write_text("SECRET-SOLUTION\n")
    skill = folder / "part-mass" / "environment" / "skills" / "mesh-tools"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: mesh-tools\n---\nUse it.")
    return folder


def registry_of(system: str) -> list[str]:
    block = re.search(r"```jsonl\n(.*?)\n```", system, re.DOTALL)
    assert block
    return [json.loads(line)["name"] for line in block[1].split("\n")]


def annotate_like_a_model(system: str, user: str) -> str:
    """Fences, prose, spelling of its own; and on the first look no match for the last example."""
    task, names = json.loads(user), registry_of(system)
    kind = task["task_id"].rpartition("/")[2]
    if kind == "deploy-command" and len(names) > len(NEAR):
        near = [{"reason": "the command is about it", "task_type": name} for name in NEAR]
        return json.dumps({"matches": [], "candidates": near})
    wanted = [name for name in TABLE_5[kind][1] if name in names]
    match = [
        {
            "operation": f"what {kind} needs",
            "observable_result": "the file it writes",
            "task_type": name.lower() if kind == "python-build" else name,
        }
        for name in wanted
    ]
    if kind == "bibliography":
        match.append({"operation": "x", "observable_result": "y", "task_type": "Library science"})
    text = json.dumps({"matches": match, "candidates": []}, indent=1)
    return f"Here is my annotation.\n```json\n{text}\n```" if kind == "part-mass" else text


def call(stub: StubJudge, *folders: Path, **options: Any) -> int:
    arguments = ["annotate", *map(str, folders), "--model", "m", "--base-url", stub.base_url]
    for name, value in options.items():
        arguments += [
            f"--{name.replace('_', '-')}",
            *map(str, value if isinstance(value, tuple) else (value,)),
        ]
    return main(arguments)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "corpus")


def test_the_papers_examples_get_their_task_types(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with StubJudge(annotate_like_a_model) as stub:
        assert call(stub, corpus, prices=(1.0, 2.0)) == 0
    records = read_tags(corpus / "tags.jsonl")
    assert list(records) == sorted(TABLE_5)
    assert {name: record["tags"] for name, record in records.items()} == {
        name: tags for name, (_, tags) in TABLE_5.items()
    }
    assert records["bibliography"]["unknown"] == ["Library science"]
    assert records["part-mass"]["matches"][1] == {
        "task_type": "Unit harmonization",
        "operation": "what part-mass needs",
        "observable_result": "the file it writes",
    }
    bodies = [body for _, body in stub.requests]
    texts = ["\n".join(m["content"] for m in body["messages"]) for body in bodies]
    assert not any("SECRET" in text or "hidden_expected" in text for text in texts)
    asked = [registry_of(body["messages"][0]["content"]) for body in bodies]
    assert sorted(map(len, asked)) == [2] + [82] * 5
    assert min(asked, key=len) == NEAR
    part = next(t for b in bodies for t in [json.loads(b["messages"][1]["content"])]
                if t["task_id"] == "part-mass")  # fmt: skip
    assert part["artifact_paths"] == ["part-mass.dat"]
    assert part["available_skills"] == ["mesh-tools"]
    summary = json.loads((corpus / "tags_summary.json").read_text())
    assert (summary["annotated"], summary["failed"], summary["second_passes"]) == (5, 0, 1)
    assert (summary["with_several_tags"], summary["untagged"]) == (1, 0)
    assert (summary["task_types_used"], summary["invented_names"], summary["calls"]) == (5, 1, 6)
    assert summary["cost"] == pytest.approx((6 * 9 * 1.0 + 6 * 5 * 2.0) / 1e6)
    output = capsys.readouterr()
    assert "5 of 5 tasks annotated (0 by earlier runs, 0 failed)" in output.out
    assert "5/5" in output.err


def test_what_failed_is_tried_again_and_what_holds_is_kept(corpus: Path) -> None:
    def half(system: str, user: str) -> str:
        if json.loads(user)["task_id"] in ("bibliography", "part-mass"):
            return "I am sorry, I cannot."
        return annotate_like_a_model(system, user)

    out = corpus.parent / "mine.jsonl"
    with StubJudge(half) as stub:
        assert call(stub, corpus, out=out) == 1
    assert sorted(read_tags(out)) == ["clinical-study", "deploy-command", "python-build"]
    # Whoever wrote the file died in the middle of a line.
    with out.open("a") as file:
        file.write('{"task_id": "part-ma')
    with StubJudge(annotate_like_a_model) as stub:
        assert call(stub, corpus, out=out) == 0
        assert len(stub.requests) == 2
        (corpus / "part-mass" / "instruction.md").write_text("Weigh it by part.stl and 2.7 g/cm3.")
        assert call(stub, corpus, out=out) == 0
        assert len(stub.requests) == 3, "a task that changed is annotated anew"
        assert call(stub, corpus, out=out, model="another") == 0
        assert len(stub.requests) == 3 + 6, "so is all of it for another model"
    assert {record["model"] for record in read_tags(out).values()} == {"another"}


def test_killed_in_the_middle_it_goes_on_where_it_was(corpus: Path) -> None:
    def slow(system: str, user: str) -> str:
        if json.loads(user)["task_id"] == "part-mass":
            os.kill(process.pid, 9)
        return annotate_like_a_model(system, user)

    with StubJudge(slow) as stub:
        arguments = [
            *(sys.executable, "-m", "arise.tasks", "annotate", str(corpus), "--model", "m"),
            *("--base-url", stub.base_url, "--concurrency", "1"),
        ]
        env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        process = subprocess.Popen(arguments, env=env, stderr=subprocess.DEVNULL)
        assert process.wait(timeout=120) == -9
    first = read_tags(corpus / "tags.jsonl")
    assert sorted(first) == ["bibliography", "clinical-study", "deploy-command"]
    with StubJudge(annotate_like_a_model) as stub:
        assert call(stub, corpus) == 0
        assert len(stub.requests) == 2
    final = read_tags(corpus / "tags.jsonl")
    assert len(final) == 5
    assert {name: final[name] for name in first} == first


def test_a_budget_of_calls_holds(corpus: Path) -> None:
    with StubJudge(annotate_like_a_model) as stub:
        assert call(stub, corpus, max_calls=3, concurrency=1) == 1
        assert len(stub.requests) == 3
    assert len(read_tags(corpus / "tags.jsonl")) == 3 - 1  # the third example takes two passes


def test_training_takes_the_tags(corpus: Path, caplog: pytest.LogCaptureFixture) -> None:
    with StubJudge(annotate_like_a_model) as stub:
        call(stub, corpus)
    path = corpus / "tags.jsonl"
    cfg = compose_config(
        "experiment=arise",
        "model=random_tiny",
        "evaluation=none",
        "datamodule=folder",
        f"datamodule.corpus={corpus}",
        f"datamodule.tags={path}",
    )
    validate(cfg)
    tasks = assembly.load_tasks(cfg.datamodule)
    assert {task.id: list(task.tags) for task in tasks} == {
        name: tags for name, (_, tags) in TABLE_5.items()
    }
    assert not caplog.records
    # A task without a line has no type; a changed one keeps its types, and a warning tells.
    kept = [line for line in path.read_text().splitlines() if "python-build" not in line]
    path.write_text("\n".join(kept) + "\n")
    (corpus / "bibliography" / "instruction.md").write_text("Check refs.bib otherwise.")
    caplog.set_level(logging.WARNING)
    tasks = assembly.load_tasks(cfg.datamodule)
    tags = {task.id: task.tags for task in tasks}
    assert (tags["python-build"], tags["bibliography"]) == (
        (),
        ("Evidence conformance assessment",),
    )
    assert "1 of 5 tasks have no line" in caplog.text
    assert "1 tasks are not what they were" in caplog.text


def test_a_wrong_tags_file_is_explained(corpus: Path, tmp_path: Path) -> None:
    tasks = load_corpus(corpus)
    path = tmp_path / "tags.jsonl"
    path.write_text('{"task_id": "other/x", "tags": ["a"]}\n')
    with pytest.raises(ConfigError, match=r"datamodule.tags: .* ids look like 'other/x'"):
        with_tags(tasks, path)
    path.write_text('{"task_id": "part-mass", "tags": "a"}\n')
    with pytest.raises(ConfigError, match=r"datamodule.tags: .*line 1 is no annotation: task_id"):
        with_tags(tasks, path)
    cfg = compose_config("datamodule=folder", f"datamodule.corpus={corpus}", "datamodule.tags=no")
    with pytest.raises(ConfigError, match=r"datamodule.tags: file 'no' does not exist"):
        validate(cfg)


def test_mistakes_of_the_command_line(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["annotate", str(corpus), "--model", "m", "--base-url", "http://127.0.0.1:9/v1"]) == 2
    )
    assert "annotate.base_url=http://127.0.0.1:9/v1 cannot be reached" in capsys.readouterr().err
    with StubJudge(annotate_like_a_model) as stub:
        assert call(stub, corpus, taxonomy=corpus / "none.yaml") == 2
        assert "none.yaml cannot be read" in capsys.readouterr().err
        assert call(stub, corpus, out=corpus / "no" / "tags.jsonl") == 2
        assert "give another file by --out" in capsys.readouterr().err
        assert call(stub, corpus, max_calls=0) == 2


def test_the_registry_is_the_papers() -> None:
    taxonomy = read_taxonomy()
    assert len(taxonomy.types) == len(set(taxonomy.names)) == 82
    assert {tag for _, tags in TABLE_5.values() for tag in tags} <= set(taxonomy.names)
    table_4 = {
        "Software Engineering",
        "Cybersecurity",
        "Data Analytics",
        "Industrial Engineering",
        "Scientific Research",
        "Digital Media",
        "Business Operations",
        "Healthcare",
        "Finance",
        "Mathematics",
    }
    assert set(taxonomy.domains) == table_4
    for domain in table_4:
        assert sum(domain in found for found in taxonomy.frequent_in.values()) >= 8, domain
    # Types are shared by domains, as operations are; only a few belong to one alone.
    assert sum(len(found) > 1 for found in taxonomy.frequent_in.values()) >= 65
    for entry in taxonomy.types:
        texts = (entry.definition, entry.inclusion, entry.exclusion)
        assert all(len(text.split()) >= 3 and text.endswith(".") for text in texts), entry.name
        assert len(set(texts)) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("types: 3", "must be a table with a list `types`"),
        ("types: [{name: a}]", "task type number 1 needs a text `definition`, got None"),
        (
            "types:\n" + 2 * "- {name: a, definition: b, inclusion: c, exclusion: d}\n",
            "task type 'a' occurs twice",
        ),
        (
            "types:\n- {name: a, definition: b, inclusion: c, exclusion: d, domains: [XX]}\n",
            "names domain 'XX'",
        ),
    ],
)
def test_a_wrong_registry_is_explained(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "taxonomy.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(message)):
        read_taxonomy(path)
