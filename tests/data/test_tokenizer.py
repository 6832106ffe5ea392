import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import numpy as np
import pytest
from transformers import BertTokenizer

from dpsweep.base.files import read_checked_json, write_json
from dpsweep.data import DatasetError
from dpsweep.data.hub_file import HubError
from dpsweep.data.tokenizer import Tokenizer, prepare
from dpsweep.study.config import Backbone, Dataset

PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "the",
    "cat",
    "##s",
    "sat",
    "!",
    "caf",
    "##e",
]


def reader(tokenizer: dict[str, Any] | None, **changes: Any) -> Backbone:
    return Backbone(
        title="Reader",
        library="transformers",
        architecture="distilbert",
        weights={"kind": "random"},
        tokenizer=tokenizer,
        **changes,
    )


def bert(folder: Path, pieces: list[str] = PIECES) -> Tokenizer:
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    section = reader({"kind": "file", "path": str(folder / "vocab.txt")})
    return prepare("reader", section, {}, folder / "out.json")


def encode(tokenizer: Tokenizer, texts: list[str], max_length: int) -> list[list[int]]:
    return [row for block in tokenizer.blocks(texts, max_length) for row in block.tolist()]


def test_a_vocabulary_of_bert_reads_as_in_transformers(tmp_path: Path) -> None:
    texts = ["The cats SAT!", "Café  dog", "", "the " * 20]
    made = bert(tmp_path)
    assert made.identity.vocabulary == len(PIECES)
    known = BertTokenizer(vocab={piece: i for i, piece in enumerate(PIECES)})
    wanted = known(texts, truncation=True, max_length=8)["input_ids"]
    assert encode(made, texts, 8) == [[*row, *[-1] * (8 - len(row))] for row in wanted]
    # By hand: [CLS] the cat ##s sat ! [SEP]; a text that is cut keeps its last token.
    assert wanted[0] == [2, 5, 6, 7, 8, 9, 3]
    assert encode(made, ["the cat sat!"], 5) == [[2, 5, 6, 8, 3]]
    assert next(made.blocks(["the cat"], 5)).dtype == np.int32


def test_capitals_in_a_vocabulary_are_kept_in_texts(tmp_path: Path) -> None:
    made = bert(tmp_path, [*PIECES, "Cat"])
    assert encode(made, ["cat Cat CAT"], 5) == [[2, 6, 12, 1, 3]]


def publish(prepared: Path, file: Path) -> None:
    """Write the library's file of a prepared tokenizer."""
    write_json(file, read_checked_json(prepared)["tokenizer"])


def test_an_edited_tokenizer_is_refused(tmp_path: Path) -> None:
    bert(tmp_path)
    path = tmp_path / "out.json"
    path.write_text(path.read_text().replace('"[CLS]": 2', '"[CLS]": 3'))
    with pytest.raises(DatasetError, match="edited") as raised:
        Tokenizer.open(path)
    assert raised.value.remake == (path,)


def test_many_texts_keep_their_order(tmp_path: Path) -> None:
    texts = ["the " * (number % 7) for number in range(3000)]
    blocks = list(bert(tmp_path).blocks(iter(texts), 10))
    assert max(map(len, blocks)) < 3000
    lengths = np.concatenate([(block == 5).sum(1) for block in blocks])
    assert lengths.tolist() == [number % 7 for number in range(3000)]


def test_a_published_file_is_taken_as_it_is(tmp_path: Path) -> None:
    first = bert(tmp_path)
    publish(tmp_path / "out.json", tmp_path / "tokenizer.json")
    section = reader({"kind": "file", "path": str(tmp_path / "tokenizer.json")})
    again = prepare("reader", section, {}, tmp_path / "again.json")
    assert again.identity == first.identity
    other = bert(tmp_path, [*PIECES, "dog"])
    assert other.identity != first.identity


@pytest.fixture
def public(tmp_path: Path) -> dict[str, Dataset]:
    words = [f"{a}{b}ation" for a in ("transform", "rel", "cre", "not") for b in ("", "i", "er")]
    rows = [f'"{words[i % 12]} and {words[(i * 5) % 12]}",{i % 2}' for i in range(200)]
    for name in ("train", "test"):
        (tmp_path / f"{name}.csv").write_text("text,label\n" + "\n".join(rows))
    files = {split: str(tmp_path / f"{split}.csv") for split in ("train", "test")}
    section: dict[str, Any] = {
        **{"title": "Public", "kind": "text", "classes": 2, "train_size": 200, "test_size": 200},
        **{"tokenizer": "reader", "max_length": 8, "source": {"kind": "files", **files}},
    }
    return {"public": Dataset.model_validate(section)}


def test_a_trained_vocabulary(tmp_path: Path, public: dict[str, Dataset]) -> None:
    section = reader({"kind": "train", "dataset": "public", "vocab_size": 200})
    made = prepare("reader", section, public, tmp_path / "out.json")
    assert made.identity.vocabulary <= 200
    (row,) = encode(made, ["transformation and creation"], 8)
    # Frequent words became one piece each, between [CLS] and [SEP].
    assert [each >= 0 for each in row] == [True] * 5 + [False] * 3
    assert row[0] == 2
    assert row[4] == 3
    (unknown,) = encode(made, ["日"], 8)
    assert unknown[:3] == [2, 1, 3]


def test_training_is_deterministic(tmp_path: Path, public: dict[str, Dataset]) -> None:
    # The library numbers pieces by a hash that differs between processes.
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tests.data.test_tokenizer import reader\n"
        "from dpsweep.data.tokenizer import prepare\n"
        "from dpsweep.study.config import Dataset\n"
        "public = Dataset.model_validate_json(sys.argv[1])\n"
        "section = reader({'kind': 'train', 'dataset': 'public', 'vocab_size': 200})\n"
        "print(prepare('reader', section, {'public': public}, Path(sys.argv[2])).identity.checksum)"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code, public["public"].model_dump_json(), tmp_path / name],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parents[2],
        ).stdout
        for name in ("1.json", "2.json", "3.json")
    }
    assert len(found) == 1


def test_what_is_not_a_tokenizer(tmp_path: Path) -> None:
    for name, content, problem in (
        ("none.json", None, "no such file"),
        ("some.json", "{}", r"not a tokenizer\.json"),
        ("some.txt", "cat\ndog\n", r"not a vocabulary of BERT, \[PAD\], \[UNK\]"),
    ):
        if content is not None:
            (tmp_path / name).write_text(content)
        section = reader({"kind": "file", "path": str(tmp_path / name)})
        with pytest.raises(DatasetError, match=problem):
            prepare("reader", section, {}, tmp_path / "out.json")
        assert not (tmp_path / "out.json").exists()
    with pytest.raises(DatasetError, match="no such tokenizer") as raised:
        Tokenizer.open(tmp_path / "out.json")
    assert raised.value.remake == (tmp_path / "out.json",)
    image = Backbone(title="Images", architecture="vit", weights={"kind": "random"})
    with pytest.raises(DatasetError, match="reads no text"):
        prepare("images", image, {}, tmp_path / "out.json")


def test_offline_it_fails_at_once_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    weights = {"kind": "hub", "id": "distilbert/distilbert-base-uncased"}
    section = Backbone(
        title="DistilBERT", library="transformers", architecture="distilbert", weights=weights
    )
    started = time.monotonic()
    with pytest.raises(HubError) as refused:
        prepare("distilbert", section, {}, tmp_path / "out.json")
    assert time.monotonic() - started < 60
    # All that the backbone will need, in one command.
    files = "tokenizer.json config.json model.safetensors"
    command = f"hf download distilbert/distilbert-base-uncased {files}"
    assert command in str(refused.value)
    assert "backbones.distilbert.tokenizer: {kind: file, path: ...}" in str(refused.value)


def test_offline_the_hubs_cache_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    revision = "0123456789abcdef0123456789abcdef01234567"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    snapshot = tmp_path / "cache" / "models--someone--bert" / "snapshots" / revision
    snapshot.mkdir(parents=True)
    first = bert(tmp_path)
    publish(tmp_path / "out.json", snapshot / "tokenizer.json")
    weights = {"kind": "hub", "id": "someone/bert", "revision": revision}
    section = Backbone(title="B", library="transformers", architecture="bert", weights=weights)
    assert prepare("b", section, {}, tmp_path / "b.json").identity == first.identity
