"""Tables that the command line prints, and tables in Markdown."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from faustnet.errors import printable

MANY = 40  # classes, above which a confusion matrix is not printed
SHOWN_ERRORS = 10  # kinds of errors that are printed in its place


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[str] = ()) -> None:
    """Print a table with the columns `numbers` aligned right. Cells are printed literally, without markup."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(printable(column), justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(printable, row))
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 200  # wide enough for any table
    console.print(table)


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: int | None = None) -> str:
    """Return a Markdown table whose last `numbers` columns, by default all but the first, are aligned right."""
    numbers = len(columns) - 1 if numbers is None else numbers
    rules = ["---"] * (len(columns) - numbers) + ["---:"] * numbers
    return "\n".join(f"| {' | '.join(line)} |" for line in (columns, rules, *rows))


def print_evaluation(result: dict[str, Any]) -> None:
    """Print the accuracy of each layer or output, the cost of a prediction and the confusion matrix of one model."""
    chosen = f" of layers {', '.join(map(str, result['layers']))} together" if result["layers"] else ""
    print(f"{result['method']} on {printable(result['dataset'])}: test accuracy{chosen} {result['accuracy']:.2%}")
    voters = zip(result["voters"], result["layer_accuracy"], result["first_layers_accuracy"], strict=True)
    columns = ("alone", "with all before it")
    print_table(("", *columns), [(name, f"{one:.2%}", f"{all_:.2%}") for name, one, all_ in voters], numbers=columns)
    if result["weights"] and not result["layers"]:
        weights = ", ".join(f"{weight:g}" for weight in result["weights"])
        print(f"The accuracy above weights the layers {weights}; the table weights them equally.")
    passes = result["forward_passes"]
    cost = f"{passes} forward pass{'es' if passes > 1 else ''} and {result['seconds_per_image'] * 1e6:.1f} µs"
    print(f"{cost} per image")
    _print_confusion(result["confusion"], result["class_names"])


def _print_confusion(confusion: Sequence[Sequence[int]], names: Sequence[str]) -> None:
    """Print the confusion matrix, or if there are many classes the most frequent errors."""
    if len(names) <= MANY:
        print("Confusion matrix (rows: true class):")
        counts = ([str(count) if count else "·" for count in row] for row in confusion)
        print_table(("", *names), [(name, *row) for name, row in zip(names, counts, strict=True)], numbers=names)
        return
    errors = [(count, i, j) for i, row in enumerate(confusion) for j, count in enumerate(row) if count and i != j]
    if not errors:
        return
    largest = sorted(errors, key=lambda error: (-error[0], *error[1:]))[:SHOWN_ERRORS]
    print(f"Most frequent errors among {len(names)} classes:")
    columns = ("true class", "predicted class", "images")
    print_table(columns, [(names[i], names[j], str(count)) for count, i, j in largest], numbers=columns[2:])


def print_comparison(results: list[dict[str, Any]]) -> None:
    """Print one line per model."""
    several_sets = len({result["dataset"] for result in results}) > 1
    rows = []
    for result in results:
        about = [result["method"]] if result["method"] not in result["run"] else []
        about += [f"on {result['dataset']}"] if several_sets else []
        rows.append(
            (
                f"{result['run']} ({' '.join(about)})" if about else result["run"],
                f"{result['accuracy']:.2%}",
                " ".join(f"{value * 100:.1f}" for value in result["layer_accuracy"]),
                str(result["forward_passes"]),
                f"{result['seconds_per_image'] * 1e6:.1f}",
            )
        )
    columns = ("accuracy", "each layer alone", "passes", "µs/image")
    print_table(("run", *columns), rows, numbers=columns)


def print_groups(result: dict[str, Any], methods: Sequence[Sequence[str]]) -> None:
    """Print the comparison of two groups of runs; `methods` are those of each group."""
    for name, runs, used in zip("AB", (result["a"], result["b"]), methods, strict=True):
        print(printable(f"{name}: {', '.join(runs)} ({', '.join(used)})"))
    print(printable(f"Test accuracy on {result['dataset']} in %, mean ± standard deviation over the runs:"))
    columns = ("A", "B", "A − B", f"{result['confidence']:.0%} interval")
    rows = [
        (
            row["name"],
            *(_mean_and_std(row[group]) for group in ("a", "b")),
            _signed(row["difference"]),
            " to ".join(map(_signed, row["interval"])) if row["interval"] else "–",
            _verdict(row),
        )
        for row in result["rows"]
    ]
    print_table(("", *columns, " "), rows, numbers=columns)
    for note in result["notes"]:
        print(printable(note))


def _mean_and_std(group: dict[str, Any]) -> str:
    return f"{100 * group['mean']:.2f}" + ("" if group["std"] is None else f" ± {100 * group['std']:.2f}")


def _signed(fraction: float) -> str:
    """Return a difference of accuracies in percentage points."""
    return f"{100 * fraction:+.2f}".replace("-", "−")


def _verdict(row: dict[str, Any]) -> str:
    if row["interval"] is None:
        return ""
    return f"{row['better']} is better" if row["better"] else "no clear difference"


def print_weightings(voters: Sequence[str], ways: list[dict[str, Any]]) -> None:
    """Print the accuracy of each weighting of the layers, and the option that selects the last one, which was fitted."""
    rows = [(way["name"], *(f"{weight:g}" for weight in way["weights"]), f"{way['accuracy']:.2%}") for way in ways]
    print_table(("", *voters, "accuracy"), rows, numbers=(*voters, "accuracy"))
    print("The fitted weights were evaluated on the images they were fitted to; expect a slightly lower accuracy on others.")
    print(f"To train with them: --set prediction.weights=[{','.join(f'{weight:g}' for weight in ways[-1]['weights'])}]")


def print_early_exit(result: dict[str, Any]) -> None:
    """Print the accuracy and the cost of early exit, by threshold."""
    print(f"Early exit of {result['run']}: prediction stops at the first layer whose margin reaches the threshold.")
    columns = ("margin", "accuracy", "multiplications saved", "exits after each layer, %")
    rows = [
        (
            "never" if line["threshold"] is None else f"{line['threshold']:.3g}",
            f"{line['accuracy']:.2%}",
            f"{line['saved']:.1%}",
            " ".join(f"{share * 100:.0f}" for share in line["leaving"]),
        )
        for line in result["early_exit"]
    ]
    print_table(columns, rows, numbers=columns)
