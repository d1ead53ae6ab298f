"""Files of texts with labels, their tokens, and what is refused."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from faustnet.data import DataSet, TextSettings, Tokeniser, load_data, write_tokens
from faustnet.data.official import TextFiles
from faustnet.errors import FaustnetError
from processes import Program

GOOD = ["a fine film", "a warm and funny film", "what a good story", "good fun", "the best film of the year"]
BAD = ["a dull film", "a cold and boring story", "what a bad film", "no fun", "the worst film of the year"]


def lines(count: int) -> list[tuple[str, str]]:
    """Different texts of both classes in turn."""
    return [(f"{texts[i % 5]} number {i}", name) for i in range(count) for texts, name in ((GOOD, "good"), (BAD, "bad"))]


def write_table(path: Path, rows: list[tuple[str, str]], separator: str = "\t", header: str = "text\tlabel") -> Path:
    header = header.replace("\t", separator)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *(f"{text}{separator}{label}" for text, label in rows)]) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_table(tmp_path / "films" / "train.tsv", lines(20))
    write_table(tmp_path / "films" / "test.tsv", lines(5))
    return tmp_path / "films"


def texts_of(data: DataSet, part: str = "train") -> list[str]:
    assert data.tokeniser is not None
    return data.tokeniser.decode(getattr(data, part).all_pixels)


def refused(path: Path, settings: TextSettings | None = None) -> str:
    with pytest.raises(FaustnetError) as caught:
        load_data(str(path), text=settings)
    return str(caught.value)


def test_a_folder_of_texts_becomes_rows_of_token_ids(folder: Path) -> None:
    data = load_data(str(folder))
    assert (data.name, data.class_names, data.left_out, data.validation) == ("films", ("bad", "good"), (), None)
    assert texts_of(data) == [text for text, _ in lines(20)]
    assert texts_of(data, "test") == [text for text, _ in lines(5)]
    assert data.train.labels.tolist() == [1, 0] * 20
    assert data.tokeniser is not None
    assert data.train.shape == (32,) == (data.tokeniser.length,)
    assert not data.train.all_pixels[:, -1].any()
    assert 0 < int(data.train.all_pixels.max()) < data.tokeniser.vocabulary


@pytest.mark.parametrize("kind", ["csv", "csv with semicolons", "jsonl"])
def test_csv_and_jsonl_files_give_the_same_data_as_tsv(folder: Path, tmp_path: Path, kind: str) -> None:
    for part, count in (("train", 20), ("test", 5)):
        path = tmp_path / kind / f"{part}.{kind.split()[0]}"
        if kind.startswith("csv"):
            write_table(path, [(f'"{text}"', label) for text, label in lines(count)], "," if kind == "csv" else ";")
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text("\n".join(json.dumps({"label": label, "text": text}) for text, label in lines(count)))
    found, expected = load_data(str(tmp_path / kind)), load_data(str(folder))
    assert torch.equal(found.train.all_pixels, expected.train.all_pixels)
    assert torch.equal(found.test.labels, expected.test.labels)
    assert found.class_names == expected.class_names


def test_quotation_marks_are_letters_in_tsv_and_enclose_fields_in_csv(tmp_path: Path) -> None:
    rows = [('"good', "a"), ('so "good"', "b"), ("plain", "a")]
    write_table(tmp_path / "tsv" / "train.tsv", rows)
    write_table(tmp_path / "tsv" / "test.tsv", rows)
    assert texts_of(load_data(str(tmp_path / "tsv"))) == ['"good', 'so "good"', "plain"]
    for part in ("train", "test"):
        (tmp_path / f"{part}.csv").write_text('text,label\n"one, ""two""\nthree",a\nfour,b\n')
    assert texts_of(load_data(str(tmp_path))) == ['one, "two"\nthree', "four"]


def test_labels_that_are_numbers_are_sorted_as_numbers(tmp_path: Path) -> None:
    for part in ("train", "test"):
        write_table(tmp_path / f"{part}.tsv", [("ten", "10"), ("two", "2"), ("one", "1")])
    assert load_data(str(tmp_path)).class_names == ("1", "2", "10")


def test_a_fifth_of_a_single_file_is_held_out_and_stays_so(tmp_path: Path) -> None:
    path = write_table(tmp_path / "films.tsv", lines(50))
    before = load_data(str(path))
    assert len(before.train) + len(before.test) == 100
    assert 8 <= len(before.test) <= 35
    write_table(path, [*lines(60), lines(1)[0]])
    after = load_data(str(path))
    assert set(texts_of(before, "test")) <= set(texts_of(after, "test"))
    assert not set(texts_of(after, "test")) & set(texts_of(after))


def test_own_validation_texts_are_used_only_if_validation_is_asked_for(folder: Path) -> None:
    from faustnet.runs.recipes import recipe_from
    from faustnet.runs.session import validation_split

    write_table(folder / "dev.csv", lines(3), ",")
    data = load_data(str(folder))
    assert data.validation is not None
    assert len(data.validation) == 6
    train, held_out = validation_split(recipe_from({"training": {"validation": 0.5}}), data)
    assert (len(train), len(held_out)) == (40, 6)
    assert validation_split(recipe_from({}), data)[1] is data.test


def test_columns_are_found_by_usual_names_or_by_the_given_ones(tmp_path: Path) -> None:
    for part in ("train", "test"):
        write_table(tmp_path / f"{part}.tsv", lines(3), header="Sentence\tCategory")
    assert len(load_data(str(tmp_path)).train) == 6
    for part in ("train", "test"):
        write_table(tmp_path / f"{part}.tsv", lines(3), header="what was said\twho")
    assert "must have one text column" in refused(tmp_path)
    assert "'what was said', 'who'" in refused(tmp_path)
    settings = TextSettings(text_column="what was said", label_column="who")
    assert len(load_data(str(tmp_path), text=settings).train) == 6
    wrong = TextSettings(text_column="said", label_column="who")
    assert "data.text_column must be a column of" in refused(tmp_path, wrong)
    same = TextSettings(text_column="who", label_column="who")
    assert "must be different columns" in refused(tmp_path, same)


def test_two_columns_with_usual_names_are_refused(folder: Path) -> None:
    (folder / "train.tsv").write_text("text\treview\tlabel\na\tb\tc\n")
    assert "must have one text column" in refused(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "contains no texts"),
        (b"text\tlabel\n", "contains no texts"),
        (b"a fine film\tgood\na dull film\tbad\n", "must have one text column, named text, sentence"),
        (b"text\tlabel\nfine\tgood\n\tbad\n", "The text in line 3 of .* is empty"),
        (b"text\tlabel\nfine\tgood\n  \tbad\n", "The text in line 3 of .* is empty"),
        (b"text\tlabel\nfine\t\n", "label in line 2 of .* must be a name or a whole number, got ''"),
        (b"text\tlabel\nfine\t0.5\n", "label in line 2 of .* got '0.5'"),
        (b"text\tlabel\nfine\tgood\tmore\n", "Line 2 of .* must have 2 columns like the first, got 3"),
        (b"text\tlabel\nfine\tgood\ndull\n", "Line 3 of .* must have 2 columns like the first, got 1"),
        (b"text\tlabel\ttext\nfine\tgood\ta\n", "got 'text' twice"),
        (b"text\tlabel\nfine\tgood\ncaf\xe9\tbad\n", "must be UTF-8, but line 3 is not"),
        ("text\tlabel\nfine\tgood\n".encode("utf-16"), "must be UTF-8, but line 1 is not"),
        (b"text\tlabel\nfine\tgood\ngreat\tgood\n", "must have texts of at least two classes"),
    ],
)
def test_bad_tables_are_refused_with_the_line(folder: Path, content: bytes, message: str) -> None:
    (folder / "train.tsv").write_bytes(content)
    write_table(folder / "test.tsv", [("fine", "good")])
    with pytest.raises(FaustnetError, match=message):
        load_data(str(folder))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nothing", "Line 1 of .* is not JSON"),
        ("[1]", "Line 1 of .* must be a JSON object"),
        ('{"text": "fine", "label": "a"}\n{"text": "fine"}', "Line 2 of .* has no 'label'"),
        ('{"text": 3, "label": "a"}', "The text in line 1 of .* must be a string, got int"),
        ('{"text": "fine", "label": 1.5}', "must be a name or a whole number, got 1.5"),
        ('{"text": "fine", "label": null}', "must be a name or a whole number, got None"),
        ('{"text": "\\ud800", "label": 1}', "invalid Unicode"),
    ],
)
def test_bad_jsonl_files_are_refused_with_the_line(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "films.jsonl").write_text(line)
    with pytest.raises(FaustnetError, match=message):
        load_data(str(tmp_path / "films.jsonl"))


def test_csv_with_an_open_quotation_mark_is_refused(tmp_path: Path) -> None:
    (tmp_path / "films.csv").write_text('text,label\nnice,good\n"fine,good\ndull,bad\n')
    sentence = refused(tmp_path / "films.csv")
    assert "The row in line 3 of" in sentence
    assert "fix its quotation marks" in sentence


def test_a_label_that_is_new_in_the_test_file_is_refused(folder: Path) -> None:
    write_table(folder / "test.tsv", [("so so", "middling")])
    assert "has the label 'middling', which train.tsv does not have" in refused(folder)


def test_a_folder_without_test_texts_or_with_two_training_files_is_refused(folder: Path) -> None:
    write_table(folder / "train.csv", lines(3), ",")
    assert "must have one file of train texts, got train.tsv and train.csv" in refused(folder)
    (folder / "train.csv").unlink()
    (folder / "test.tsv").unlink()
    assert "must have a file test.tsv, test.csv or test.jsonl" in refused(folder)


def test_long_texts_are_truncated_and_counted(folder: Path) -> None:
    write_table(folder / "test.tsv", [("word " * 300, "good"), ("a", "bad")])
    data = load_data(str(folder), text=TextSettings(tokens=4))
    assert data.train.shape == (4,)
    assert data.tokeniser is not None
    long = sum(len(ids) > 4 for ids in data.tokeniser.encode([text for text, _ in lines(20)]))
    message = f"all tokens after the first 4 of {long} of 40 training texts and 1 of 2 test texts (data.tokens)"
    assert data.left_out == (message,)
    assert (data.test.all_pixels[0] != 0).all()


@pytest.mark.parametrize(("words", "length"), [(3, 32), (50, 50), (200, 128)])
def test_the_longest_training_text_determines_the_length_within_limits(words: int, length: int) -> None:
    assert Tokeniser.train(["film " * words, "film"], 400).length == length


def test_the_tokeniser_knows_nothing_of_the_test_texts(folder: Path) -> None:
    before = load_data(str(folder)).tokeniser
    write_table(folder / "test.tsv", [("zebra zebra zebra", "good"), ("zebra", "bad")])
    assert load_data(str(folder)).tokeniser == before


def test_a_tokeniser_encodes_what_it_has_never_seen() -> None:
    tokeniser = Tokeniser.train([*GOOD, *BAD], 400, 64)
    texts = ["schöne Grüße", "映画", "[PAD]", "tab\tand 🎬"]
    assert tokeniser.decode(tokeniser.whole_rows(texts)) == ["schöne grüße", "映画", "[pad]", "tab\tand 🎬"]
    assert (tokeniser.whole_rows(texts)[:, 0] != 0).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Text 2 is empty"),
        (" \n", "Text 2 is empty"),
        ("\ud800", "Text 2 contains invalid Unicode"),
        ("good " * 20, "A text must have at most 8 tokens for this model, but text 2 has 20"),
    ],
)
def test_texts_that_a_model_cannot_read_are_refused(text: str, message: str) -> None:
    tokeniser = Tokeniser.train([*GOOD, *BAD], 400, 8)
    with pytest.raises(FaustnetError, match=message):
        tokeniser.whole_rows(["good fun", text])


def test_training_a_tokeniser_gives_the_same_tokens_in_every_process(folder: Path) -> None:
    program = (
        "import sys; from faustnet.data import load_data; data = load_data(sys.argv[1]); print(data.tokeniser.definition)"
    )
    others = [Program(program, folder) for _ in range(2)]
    own = load_data(str(folder)).tokeniser
    assert own is not None
    assert [other.communicate() for other in others] == 2 * [(f"{own.definition}\n", "")]


def test_a_token_file_gives_the_same_data_without_the_library(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_table(folder / "valid.tsv", lines(2))
    data = load_data(str(folder))
    write_tokens(data, tmp_path / "films.npz")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    found = load_data(str(tmp_path / "films.npz"))
    assert (found.name, found.class_names, found.tokeniser) == (data.name, data.class_names, data.tokeniser)
    for part in ("train", "test", "validation"):
        assert torch.equal(getattr(found, part).pixels, getattr(data, part).pixels)
        assert torch.equal(getattr(found, part).labels, getattr(data, part).labels)
    assert texts_of(found, "test") == [text for text, _ in lines(5)]
    assert "Texts need the package tokenizers" in refused(folder)


def test_a_token_file_must_agree_with_the_settings(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "films.npz"
    data = load_data(str(folder), text=TextSettings(tokens=6))
    assert data.tokeniser is not None
    write_tokens(data, path)
    assert load_data(str(path), text=TextSettings(tokens=6)).train.shape == (6,)
    assert "data.tokens must be 6" in refused(path, TextSettings(tokens=7))
    assert "data.vocabulary must be at least" in refused(path, TextSettings(vocabulary=256))
    other = Tokeniser(data.tokeniser.definition, 9)
    assert "another tokeniser than that of the model" in refused(path, TextSettings(tokeniser=other))


@pytest.mark.parametrize(
    "change",
    [
        {"x_train": np.full((40, 6), 9000, np.int16)},
        {"x_train": np.full((40, 6), -1, np.int16)},
        {"x_train": np.zeros((40, 6), np.int16)},
        {"x_train": np.ones((40, 5), np.int16)},
        {"x_test": np.ones((0, 6), np.int16), "y_test": np.ones(0, np.int64)},
        {"y_train": np.full(40, 2)},
        {"y_train": np.full(40, "good")},
        {"class_names": np.frombuffer(b'["a", "a"]', np.uint8)},
        {"tokeniser": np.frombuffer(b"{}", np.uint8)},
        {"tokeniser": np.frombuffer(b'{"definition": "{}", "length": 6}', np.uint8)},
    ],
)
def test_damaged_token_files_are_refused(folder: Path, tmp_path: Path, change: dict[str, np.ndarray]) -> None:
    path = tmp_path / "films.npz"
    write_tokens(load_data(str(folder), text=TextSettings(tokens=6)), path)
    with np.load(path) as arrays:
        np.savez(path, **(dict(arrays) | change))
    with pytest.raises(FaustnetError):
        load_data(str(path))


def test_built_in_texts_are_read_from_the_data_folder(folder: Path, tmp_path: Path) -> None:
    films = TextFiles("films", {"train.tsv": 40, "valid.tsv": 4, "test.tsv": 10})
    place = tmp_path / "text" / "films"
    place.parent.mkdir()
    with pytest.raises(FaustnetError, match=r"films/train.tsv does not exist, and films cannot be downloaded"):
        films(tmp_path, TextSettings())
    folder.rename(place)
    write_table(place / "valid.tsv", lines(2))
    data = films(tmp_path, TextSettings())
    assert data.validation is not None
    assert (len(data.train), len(data.validation), len(data.test)) == (40, 4, 10)
    with pytest.raises(FaustnetError, match=r"train.tsv must have 41 texts, got 40"):
        TextFiles("films", {"train.tsv": 41, "test.tsv": 10})(tmp_path, TextSettings())
    with pytest.raises(FaustnetError, match=r"sst2 cannot be downloaded: save train.tsv, valid.tsv, test.tsv there"):
        load_data("sst2", tmp_path)


def test_images_are_no_texts(tmp_path: Path) -> None:
    with pytest.raises(FaustnetError, match="Only texts have tokens, but digits has images"):
        write_tokens(load_data("digits"), tmp_path / "digits.npz")
