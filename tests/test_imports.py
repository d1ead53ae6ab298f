"""Imports point one way."""

import ast
from pathlib import Path

import faustnet

ROOT = Path(faustnet.__file__).parent
LEVELS = [
    {"errors", "files", "history", "version", "paper"},
    {"devices", "environment", "facts", "kernels", "locks", "randomness", "report", "slices", "tables"},
    {"losses", "layers", "optimisers", "data"},
    {"blocks", "stacks", "references", "precision", "read_outs"},
    {"network"},
    {"methods"},
    {"schedules", "evaluation"},
    {"distributed"},
    {"training"},
    {"recipes"},
    {"model"},
    {"checkpoints"},
    {"runs", "progress"},
    {"running"},
    {"tracking"},
    {"api", "bench", "estimator", "inspection"},
    {"reproduce", "export"},
    {"cli", "__init__"},
    {"__main__"},
]
LEVEL = {room: number for number, rooms in enumerate(LEVELS) for room in rooms}


def rooms_imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            assert not any(alias.name.startswith("faustnet") for alias in node.names), "write: from faustnet.x import y"
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "write: from faustnet.x import y"
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "faustnet":
            found |= {node.module.split(".")[1]} if "." in node.module else {alias.name for alias in node.names}
    return found


def test_every_import_points_to_a_room_below() -> None:
    for path in ROOT.rglob("*.py"):
        room = path.relative_to(ROOT).parts[0].removesuffix(".py")
        assert room in LEVEL, f"{room} has no place in the order of rooms yet"
        for other in rooms_imported(path) - {room}:
            assert LEVEL[other] < LEVEL[room], f"{path.name} imports from {other}, which is not below {room}"


def test_methods_know_nothing_of_files_or_of_where_data_come_from() -> None:
    for path in (ROOT / "methods").glob("*.py"):
        assert not rooms_imported(path) & {"data", "training", "runs", "schedules"}
        assert "pathlib" not in path.read_text(encoding="utf-8")
