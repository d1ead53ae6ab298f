"""The programs in examples/ run as a user starts them, and reach what the pages say."""

import ast
import json
import re
import runpy
from pathlib import Path

import pytest

from processes import Program, free_port, run_file

EXAMPLES = Path(__file__).parents[1] / "examples"
TOOL = runpy.run_path(str(EXAMPLES.parent / "docs" / "tools" / "notebooks.py"))
GALLERY, notebook = TOOL["GALLERY"], TOOL["notebook"]
# Like torchrun --nproc-per-node 2: the same agent starts the ranks, as forks instead of new interpreters.
TORCHRUN = """
import runpy, sys
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
def rank():
    runpy.run_path(sys.argv[2], run_name="__main__")
about = {"rdzv_backend": "static", "rdzv_endpoint": sys.argv[1], "rdzv_configs": {"rank": 0}}
elastic_launch(LaunchConfig(1, 1, 2, start_method="fork", monitor_interval=0.1, **about), rank)()
"""


def run(example: str, folder: Path, **env: str) -> str:
    """Run an example in an empty folder, and return what it prints."""
    return ended(run_file(EXAMPLES / example, cwd=folder, env=env))


def ended(process: Program) -> str:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "Warning" not in err
    return out


def test_the_own_model_is_short_and_reaches_97_percent(tmp_path: Path) -> None:
    text = (EXAMPLES / "own_model.py").read_text(encoding="utf-8")
    code = re.sub(r'""".*?"""', "", text, flags=re.DOTALL)
    own = [line for line in code.splitlines() if line.strip(" )") and not line.startswith(("import", "from"))]
    assert len(own) <= 25
    accuracy = run("own_model.py", tmp_path).splitlines()[-1].split()[0]
    assert float(accuracy) >= 0.97


def test_the_own_training_loop(tmp_path: Path) -> None:
    found = run("own_training_loop.py", tmp_path)
    accuracies = re.findall(r"^accuracy ([\d.]+%)$", found, flags=re.MULTILINE)
    assert len(accuracies) == 2
    assert all(float(value.strip("%")) > 95 for value in accuracies), found
    assert (tmp_path / "own.safetensors").is_file()


def test_all_kinds_of_data(tmp_path: Path) -> None:
    found = dict(re.findall(r"^(.+): accuracy ([\d.]+)%$", run("own_data.py", tmp_path), flags=re.MULTILINE))
    assert found.keys() >= {"numpy arrays", "torch tensors", "a data set", "a data loader", "a stream"}
    assert all(float(value) > 90 for value in found.values()), found
    assert found["numpy arrays"] == found["torch tensors"] == found["a data set"]


def test_a_class_is_added_and_noise_is_rejected(tmp_path: Path) -> None:
    found = run("add_classes.py", tmp_path)
    shares = re.findall(r"^(\d+) examples: ([\d.]+)% of the nines .* ([\d.]+)% of the other digits$", found, re.MULTILINE)
    assert [count for count, _, _ in shares] == ["1", "10", "50"]
    assert float(shares[-1][1]) > 75, found
    assert all(float(others) > 85 for _, _, others in shares), found
    assert int(re.findall(r"^(\d+) of 100 images of noise", found, re.MULTILINE)[0]) > 50, found


@pytest.mark.parametrize(("example", "panels"), [("curves", 2), ("embeddings", 3)])
def test_plots(example: str, panels: int, tmp_path: Path) -> None:
    run(f"plot_{example}.py", tmp_path, MPLBACKEND="agg")
    figure = (tmp_path / f"{example}.svg").read_text(encoding="utf-8")
    assert len(re.findall(r'<g id="axes_\d+">', figure)) == panels
    assert len(re.findall(r'<g id="line2d_\d+">', figure) + re.findall("<use ", figure)) > 50


@pytest.mark.parametrize("name", GALLERY)
def test_a_notebook_has_the_code_of_the_script(name: str) -> None:
    source = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    made = json.loads(notebook(EXAMPLES / f"{name}.py"))
    assert (made["nbformat"], made["nbformat_minor"]) == (4, 5)
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in made["cells"]]
    code = [text for kind, text in cells if kind == "code"]
    assert len(code) > 2
    assert all(text.strip() for _, text in cells)
    nodes = [node for text in code for node in ast.parse(text).body]  # every cell can be run
    assert list(map(ast.dump, nodes)) == list(map(ast.dump, ast.parse(source).body[1:]))
    assert cells[0][1].startswith(f"# {source[3:].splitlines()[0]}")
    assert all(cell["outputs"] == [] for cell in made["cells"] if cell["cell_type"] == "code")
    comments = {line for line in source.splitlines() if line.startswith("# ")}
    told = " ".join(text for _, text in cells)
    assert all(line.removeprefix("# ") in told for line in comments), "nothing is lost"


def test_the_gallery_lists_every_example() -> None:
    page = (EXAMPLES.parent / "docs" / "examples.md").read_text(encoding="utf-8")
    linked = re.findall(r"^\| \[(\w+)\.py\]", page, re.MULTILINE)
    assert sorted(linked) == sorted(path.stem for path in EXAMPLES.glob("*.py"))
    assert tuple(sorted(linked[: len(GALLERY)])) == tuple(sorted(GALLERY)), "the first seven are notebooks"


def test_ranks(tmp_path: Path) -> None:
    check_ranks(ended(Program(TORCHRUN, f"127.0.0.1:{free_port()}", EXAMPLES / "ranks.py", cwd=tmp_path)))


def test_one_rank(tmp_path: Path) -> None:
    check_ranks(run("ranks.py", tmp_path, RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port())))


def check_ranks(printed: str) -> None:
    found = printed.splitlines()
    assert [line.split()[0] for line in found] == ["epoch"] * 5 + ["accuracy"], "rank 0 prints, and only rank 0"
    assert float(found[-1].split()[1].strip("%")) > 88


@pytest.mark.parametrize(("page", "example"), [("own-model", "own_model"), ("own-training-loop", "own_training_loop")])
def test_the_page_has_the_code_of_the_example(page: str, example: str) -> None:
    text = (EXAMPLES / f"{example}.py").read_text(encoding="utf-8")
    code = text[text.index('"""\n', 4) + 4 :].strip()
    assert f"```python\n{code}\n```" in (EXAMPLES.parent / "docs" / f"{page}.md").read_text(encoding="utf-8")
