"""Fuzz every loader with damaged and malicious files, guided by code coverage, and store the results.

    python benchmarks/fuzzing.py [LOADER …] --seconds 600 [--jobs 2]    fuzz these loaders, or all; ten minutes each
    python benchmarks/fuzzing.py page                                   write the table of docs/hostile-input.md

requires atheris (`pip install -c constraints.txt -e '.[fuzz]'`). A file may be read, or refused with a FaustnetError.
Everything else is a finding: another exception, a crash, 20 seconds of CPU time, or 1 GiB of additional memory. Findings
are stored in runs/fuzzing/LOADER/findings; those that raise an exception are minimised. The corpus is stored in
runs/fuzzing/LOADER/corpus, and the next run continues with it. results/fuzzing.json has the numbers of the last run of
each loader.
"""

import argparse
import hashlib
import json
import os
import re
import resource
import subprocess
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "results" / "fuzzing.json"
PAGE = ROOT / "docs" / "hostile-input.md"
WORK = ROOT / "runs" / "fuzzing"
OURS = ("faustnet", "loaders")
FOLLOWED = [*OURS, "PIL", "zipfile", "tarfile", "tomllib", "pickletools", "gzip"]  # modules whose coverage guides the search
SLOWEST = 20  # seconds of CPU time for one file
HANGS = 300  # seconds of wall-clock time for one file
MEMORY = 1 << 10  # MiB in addition to the memory in use before
LONGEST = 16 << 10  # largest size of a file in bytes
MINIMISED = 60  # seconds to minimise a finding
EDGES = re.compile(rb"cov: (\d+)")


def peak() -> int:
    """Return the peak memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


class Reader:
    """Run one loader in this process, count its results and store its findings."""

    def __init__(self, name: str, folder: Path, read: Any, refusal: type[Exception]):
        self.name, self.folder, self.read, self.refusal = name, folder, read, refusal
        self.known = {path.stem for path in (folder / "findings").iterdir()}
        self.counts = {"inputs": 0, "accepted": 0, "refused": 0}
        self.written = 0.0
        self.base = peak()

    def outcome(self, data: bytes) -> tuple[str, str]:
        """Return "accepted", "refused" or the name of a finding, and a description."""
        with TemporaryDirectory(dir=self.folder / "scratch") as scratch:
            try:
                self.read(data, Path(scratch))
            except self.refusal as error:
                return "refused", str(error)
            except Exception as error:
                return _signature(error), traceback.format_exc()
        return "accepted", ""

    def __call__(self, data: bytes) -> None:
        begin = time.process_time()
        found, about = self.outcome(data)
        if peak() > self.base + MEMORY:
            found, about = "memory", f"{peak() - self.base} MiB"
        elif (seconds := time.process_time() - begin) > SLOWEST:
            found, about = "slow", f"{seconds:.0f} seconds"
        self.counts["inputs"] += 1
        if found in self.counts:
            self.counts[found] += 1
        elif found not in self.known:
            self.known.add(found)
            (self.folder / "findings" / f"{found}.bin").write_bytes(data)
            (self.folder / f"{found}.txt").write_text(about, errors="replace")
        if time.monotonic() > self.written + 0.5 or found == "memory":
            self._write_counts()
        if found == "memory":
            os._exit(1)  # this peak would hide later ones

    def _write_counts(self) -> None:
        self.written = time.monotonic()
        partial = self.folder / "counts.part"
        partial.write_text(json.dumps(self.counts))
        partial.replace(self.folder / f"counts-{os.getpid()}.json")


def _signature(error: Exception) -> str:
    """Return the type of the exception and our line that raised it, to recognise the same fault."""
    ours = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).parent.name in HOMES]
    where = f"{Path(ours[-1].filename).stem}-{ours[-1].lineno}" if ours else "elsewhere"
    return f"{type(error).__name__}-{where}"


HOMES = {"faustnet", "benchmarks", *(path.name for path in (ROOT / "src" / "faustnet").iterdir() if path.is_dir())}


def child(name: str, arguments: list[str]) -> None:
    """Fuzz one loader in this process with libFuzzer's arguments, or minimise its findings."""
    import atheris

    with atheris.instrument_imports(include=FOLLOWED):
        import loaders
        from faustnet.errors import FaustnetError

    loader = loaders.LOADERS[name]
    folder = WORK / name
    for seed in loader.seeds():
        (folder / "corpus" / hashlib.sha1(seed).hexdigest()).write_bytes(seed)
    reader = Reader(name, folder, loader.read, FaustnetError)
    if not arguments:
        minimise(reader)
        return
    limits = [f"-timeout={HANGS}", f"-report_slow_units={HANGS}", f"-rss_limit_mb={peak() + 2 * MEMORY}"]

    def mutate(data: bytes, longest: int, seed: int) -> bytes:
        random = Random(seed)
        if loader.change and random.randrange(2):
            with suppress(ValueError, LookupError, TypeError, AttributeError, RecursionError):  # already invalid
                return loader.change(data, random)[:longest]
        return atheris.Mutate(data, longest)

    atheris.Setup(
        [sys.argv[0], *arguments, *limits, str(folder / "corpus")],
        reader,
        custom_mutator=mutate,
    )
    atheris.Fuzz()


def minimise(reader: Reader) -> None:
    """Remove the bytes that are not needed to reproduce a finding."""
    for path in sorted((reader.folder / "findings").iterdir()):
        data, size, end = path.read_bytes(), 1 << 12, time.monotonic() + MINIMISED
        if not re.match(r"\w+-\w+-\d+$", path.stem):
            continue
        while size and time.monotonic() < end:
            for place in range(len(data) - size, -1, -size):
                shorter = data[:place] + data[place + size :]
                if time.monotonic() < end and reader.outcome(shorter)[0] == path.stem:
                    data = shorter
            size //= 2
        path.write_bytes(data)


def fuzz(name: str, seconds: int) -> dict[str, Any]:
    """Fuzz one loader for a given time; restart its process whenever a file ends it."""
    folder = WORK / name
    for part in ("corpus", "findings", "scratch"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for path in [*folder.glob("counts-*.json"), *folder.glob("*.txt"), *(folder / "findings").iterdir()]:
        path.unlink()
    begin, edges, starts = time.monotonic(), 0, 0
    while (left := round(seconds - (time.monotonic() - begin))) > 0:
        words = [f"-max_total_time={left}", f"-max_len={LONGEST}", "-verbosity=1"]
        words += [f"-artifact_prefix={folder / 'findings'}/", "-close_fd_mask=1", "-use_value_profile=1", "-reload=0"]
        done = _run_child(name, *words)
        starts += 1
        edges = max([edges, *map(int, EDGES.findall(done.stderr))])
        (folder / "log.txt").write_bytes(done.stderr[-100_000:])
        if not list(folder.glob("counts-*.json")):
            sys.exit(f"{name} could not be started:\n{done.stderr.decode(errors='replace')[-2000:]}")
    spent = time.monotonic() - begin
    _run_child(name)
    counts = [json.loads(path.read_text()) for path in folder.glob("counts-*.json")]
    totals = {key: sum(count[key] for count in counts) for key in ("inputs", "accepted", "refused")}
    findings = sorted(path.stem for path in (folder / "findings").iterdir())
    return {"loader": name, "seconds": round(spent), "starts": starts, **totals, "edges": edges, "findings": findings}


def _run_child(name: str, *words: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, __file__, "child", name, *words]
    return subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True)


def keep(line: dict[str, Any]) -> None:
    """Replace the stored numbers of a loader."""
    import torch

    from faustnet.system.environment import environment

    before = json.loads(RESULT.read_text()) if RESULT.exists() else []
    others = [other for other in before if other["loader"] != line["loader"]]
    now = {**line, "environment": environment(torch.device("cpu"), 0)}
    RESULT.write_text(json.dumps(sorted([*others, now], key=lambda one: one["loader"]), indent=1) + "\n")


def table(found: list[dict[str, Any]]) -> str:
    import loaders
    from faustnet.report.tables import markdown

    rows = [
        [
            f"{loaders.LOADERS[line['loader']].about} (`{line['loader']}`)",
            f"{line['seconds'] / 60:.0f}",
            f"{line['inputs']:,}",
            f"{line['refused']:,}",
            f"{line['accepted']:,}",
            f"{line['edges']:,}",
            str(len(line["findings"])),
        ]
        for line in found
    ]
    return markdown(["input", "minutes", "files tried", "refused", "read", "branches reached", "findings"], rows)


def with_table(page: str, found: list[dict[str, Any]]) -> str:
    """Return the page with the table between its marks replaced."""
    begin, end = "<!-- fuzzed: benchmarks/fuzzing.py -->\n", "\n<!-- end -->"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    assert pattern.search(page), "the page has no marks for the table"
    return pattern.sub(lambda _: begin + table(found) + end, page, count=1)


def main() -> None:
    if sys.argv[1:2] == ["child"]:
        child(sys.argv[2], sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loaders", nargs="*", metavar="LOADER")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.loaders == ["page"]:
        found = json.loads(RESULT.read_text())
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
        return
    import loaders

    if odd := set(arguments.loaders) - set(loaders.LOADERS):
        parser.error(f"unknown loader {odd.pop()}: choose {', '.join(loaders.LOADERS)}")
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for line in pool.map(lambda name: fuzz(name, arguments.seconds), arguments.loaders or loaders.LOADERS):
            keep(line)
            print(*(f"{key} {value}" for key, value in line.items()), sep=", ", flush=True)


if __name__ == "__main__":
    main()
