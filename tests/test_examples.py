"""The programs in examples/ run as a user starts them, and reach what the pages say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from processes import Program, free_port, run_file

EXAMPLES = Path(__file__).parents[1] / "examples"


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
    command = [sys.executable, EXAMPLES / "own_data.py"]  # not a fork, because its data loader forks too
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    found = dict(re.findall(r"^(.+): accuracy ([\d.]+)%$", done.stdout, flags=re.MULTILINE))
    assert found.keys() >= {"numpy arrays", "torch tensors", "a data set", "a data loader", "a stream"}
    assert all(float(value) > 90 for value in found.values()), found
    assert found["numpy arrays"] == found["torch tensors"] == found["a data set"]


def test_ranks(tmp_path: Path) -> None:
    launcher = "from torch.distributed.run import main\nmain()"
    check_ranks(ended(Program(launcher, "--standalone", "--nproc-per-node", 2, EXAMPLES / "ranks.py", cwd=tmp_path)))


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
