"""Every mistake in a study is refused with the key, the value found and what is allowed."""

import copy
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.config.small import DELETE, SMALL, Edits, complaints, dumped, load_small, mistakes

from dpsweep.config.messages import brief, shorten
from dpsweep.study import StudyError, load_study

FLAT = "sweeps/flat"
NAMES = "letters, digits, '.', '_' and '-'"
NOTES = {
    "title": "Notes",
    "kind": "text",
    "source": {"kind": "files", "train": "train.csv", "test": "test.csv"},
    "classes": 2,
    "train_size": 300,
    "test_size": 30,
    "tokenizer": "reader",
    "max_length": 16,
}
READER: Edits = {
    "datasets/notes": NOTES,
    "backbones/reader": {
        "title": "Reader",
        "library": "transformers",
        "architecture": "distilbert",
        "weights": {"kind": "random"},
        "tokenizer": {"kind": "train", "dataset": "notes", "vocab_size": 500},
    },
}
LETTERS = {"dataset": "letters", "backbone": "random", "method": "lora"}
OTHER = {"kind": "file", "path": "tokenizer.json"}
VECTORS: Edits = {
    "datasets/vectors": {
        **{"title": "Vectors", "source": {"kind": "arrays", "train": "a.npz", "test": "b.npz"}},
        **{"classes": 2, "train_size": 300, "test_size": 30, "dimension": 8},
    },
    "backbones/identity": {
        **{"title": "Identity", "library": "dpsweep", "architecture": "identity"},
        **{"arguments": {"dimension": 8}, "weights": {"kind": "none"}},
    },
    "methods/head": {"kind": "head"},
    "sweeps/vectors": {
        **{"dataset": "vectors", "backbone": "identity", "method": "head", "epsilon": [1]},
        **{
            "epochs": [1],
            "batch_size": [8],
            "clipping_bound": [1],
            "learning_rate": [1],
            "seeds": 1,
        },
    },
}
SOURCE = "datasets.vectors.source"

# What is edited, and the mistakes that must be named; "..." stands for more text.
MISTAKES: dict[str, tuple[Edits, list[str]]] = {
    # unknown and missing keys
    "unknown section": (
        {"swepes": {}},
        ["swepes: unknown key; did you mean sweeps? allowed: title, results, privacy, ..."],
    ),
    "unknown key of a sweep": (
        {f"{FLAT}/epsilom": [1]},
        ["sweeps.flat.epsilom: unknown key; did you mean epsilon? allowed: dataset, backbone, ..."],
    ),
    "unknown key of a grid": (
        {f"{FLAT}/learning_rate": {"first": 1, "lst": 2, "count": 3}},
        [
            "sweeps.flat.learning_rate: missing last",
            "sweeps.flat.learning_rate.lst: unknown key; did you mean last? "
            "allowed: first, last, count",
        ],
    ),
    "unknown key of a method": (
        {"methods/lora/rnk": 3},
        ["methods.lora.rnk: unknown key; did you mean rank? allowed: engine, freeze, title, ..."],
    ),
    "unknown key deep in a figure": (
        {"figures/curve/panels/0/lines/0/lable": "x"},
        ["...: Line: lable: unknown key; did you mean label? allowed: ..."],
    ),
    "a key by its old name": (
        {"privacy": {"steps": "ceil"}, "methods/lora/targets": ["qkv"]},
        [
            "privacy.steps: unknown key; did you mean step_rounding? allowed: delta, ...",
            "methods.lora.targets: unknown key; did you mean target_modules? allowed: ...",
        ],
    ),
    "a size of a vocabulary by its old name": (
        {**READER, "backbones/reader/tokenizer/vocabulary": 500},
        ["backbones.reader.tokenizer.vocabulary: unknown key; did you mean vocab_size? ..."],
    ),
    "missing keys": (
        {f"{FLAT}/dataset": DELETE, f"{FLAT}/seeds": DELETE},
        ["sweeps.flat: missing dataset, seeds"],
    ),
    "missing section": ({"sweeps": DELETE}, ["the study: missing sweeps"]),
    # embeddings
    "embeddings of another dimension": (
        {**VECTORS, "datasets/vectors/dimension": 9},
        [
            "sweeps.vectors.dataset: found vectors, embeddings of dimension 9; allowed: that of the "
            "backbone's arguments, 8"
        ],
    ),
    "embeddings without a dimension": (
        {**VECTORS, "datasets/vectors/dimension": DELETE, "backbones/identity/arguments": {}},
        ["datasets.vectors.dimension: missing; allowed: how many numbers an embedding has"],
    ),
    "embeddings that a network of images reads": (
        {**VECTORS, "sweeps/vectors/backbone": "pretrained"},
        ["sweeps.vectors.dataset: found vectors (embeddings); allowed: what the backbone reads"],
    ),
    "images without a network": (
        {**VECTORS, "sweeps/vectors/dataset": "digits"},
        ["sweeps.vectors.dataset: found digits (images); allowed: what the backbone reads"],
    ),
    "embeddings whose network would train": (
        {**VECTORS, "sweeps/vectors/method": "film"},
        ["sweeps.vectors.method: found film of kind film on embeddings; allowed: kind head, ..."],
    ),
    "a source of embeddings that should hold images": (
        {**VECTORS, "datasets/vectors/kind": "image"},
        [
            "datasets.vectors.kind: found image; allowed: embedding, which is what source arrays holds",
            "datasets.vectors.image_size: missing; allowed: ...",
            "sweeps.vectors.dataset: found vectors (images); allowed: what the backbone reads",
        ],
    ),
    "embeddings with a tokenizer": (
        {**VECTORS, "datasets/vectors/tokenizer": "vit"},
        ["datasets.vectors.tokenizer: found vit; allowed: nothing (embeddings)"],
    ),
    "embeddings without a test set": (
        {**VECTORS, "datasets/vectors/source/test": DELETE},
        [
            f"{SOURCE}.test: found neither it and test_from_train; allowed: one of them, a file or ..."
        ],
    ),
    "labels of one of two files": (
        {**VECTORS, "datasets/vectors/source/train_labels": "c.npy"},
        [
            f"{SOURCE}.test_labels: missing beside the other one; allowed: a file of labels for each, ..."
        ],
    ),
    "a source that is wrong decides nothing": (
        {**VECTORS, "datasets/vectors/source/kind": "array"},
        [f'{SOURCE}.kind: found "array"; did you mean arrays? allowed: ...'],
    ),
    # what does not go together
    "a crop of what is not a photograph": (
        {"datasets/digits/crop": 0.9},
        [
            "datasets.digits.crop: found 0.9 with the source sklearn-digits; allowed: with hub and ..."
        ],
    ),
    "counts of other classes": (
        {"datasets/digits/train_counts": [1000, 347]},
        [
            "datasets.digits.train_counts: found 2 numbers, 1347 in all; allowed: 10, the number of ..."
        ],
    ),
    "a folder that leads elsewhere": (
        {"datasets/digits/source": {"kind": "folder", "path": "x", "test_folder": "../y"}},
        ['datasets.digits.source.test_folder: found "../y"; allowed: a folder\'s name, or ...'],
    ),
    "a hub id that leads elsewhere": (
        {"datasets/digits/source": {"kind": "hub", "id": "../.."}},
        ['datasets.digits.source.id: found "../.."; allowed: owner/name'],
    ),
    "a precision that the engine has not": (
        {"training": {"precision": "bfloat16", "engine": "opacus"}},
        ["training.precision: found bfloat16 with engine opacus, ...; allowed: auto, float32, ..."],
    ),
    "a sweep's engine that has not the precision": (
        {
            "training": {"precision": "bfloat16"},
            f"{FLAT}/engine": "opacus",
            "sweeps/automatic/optimizer": "sgd",
        },
        ["sweeps.flat: found engine opacus with training.precision bfloat16; allowed: another ..."],
    ),
    "an engine that is none": (
        {f"{FLAT}/engine": "ghost"},
        [
            'sweeps.flat.engine: found "ghost"; allowed: auto, expanded, bookkeeping, vmap, linear, '
            "loop or opacus"
        ],
    ),
    # wrong types
    "text for a number": (
        {f"{FLAT}/epsilon": ["tight"]},
        ['sweeps.flat.epsilon[0]: found "tight"; allowed: a number'],
    ),
    "quoted number": (
        {f"{FLAT}/seeds": "2"},
        ['sweeps.flat.seeds: found "2"; allowed: a whole number'],
    ),
    "half an epoch": (
        {f"{FLAT}/epochs": [2.5]},
        ["sweeps.flat.epochs[0]: found 2.5; allowed: a whole number"],
    ),
    "true for a number": (
        {f"{FLAT}/seeds": True},
        ["sweeps.flat.seeds: found true; allowed: a whole number"],
    ),
    "number for a list": (
        {f"{FLAT}/epsilon": 8},
        ["sweeps.flat.epsilon: found 8; allowed: a list"],
    ),
    "empty section": ({"sweeps": None}, ["sweeps: found nothing; allowed: a mapping"]),
    "list for a mapping": ({"methods": [1]}, ["methods: found [1]; allowed: a mapping"]),
    "empty list": (
        {f"{FLAT}/epsilon": []},
        ["sweeps.flat.epsilon: found []; allowed: at least 1 entry"],
    ),
    "wrong word": (
        {f"{FLAT}/optimizer": "adan"},
        [
            'sweeps.flat.optimizer: found "adan"; did you mean adam? allowed: adam, adamw, sgd, adam-bc'
        ],
    ),
    # where several kinds of value are allowed: one line, for the kind that was meant
    "misspelt automatic": (
        {f"{FLAT}/clipping_bound": "autmatic"},
        ['sweeps.flat.clipping_bound: found "autmatic"; allowed: a list or automatic or none'],
    ),
    "one bound without a list": (
        {f"{FLAT}/clipping_bound": 1},
        ["sweeps.flat.clipping_bound: found 1; allowed: a list or automatic or none"],
    ),
    "misspelt full": (
        {f"{FLAT}/batch_size": [64, "ful"]},
        ['sweeps.flat.batch_size[1]: found "ful"; allowed: a whole number or full'],
    ),
    "learning rate of no kind": (
        {f"{FLAT}/learning_rate": "high"},
        ['sweeps.flat.learning_rate: found "high"; allowed: a list or a mapping'],
    ),
    "unknown kind": (
        {"methods/film/kind": "fim"},
        [
            'methods.film.kind: found "fim"; did you mean film? '
            "allowed: all, film, head, lora, scratch"
        ],
    ),
    # values out of range
    "negative epsilon": (
        {f"{FLAT}/epsilon": [-1, 8]},
        ["sweeps.flat.epsilon[0]: found -1; allowed: above 0"],
    ),
    "nan epsilon": (
        {f"{FLAT}/epsilon": [float("nan")]},
        ["sweeps.flat.epsilon[0]: found .nan; allowed: above 0"],
    ),
    "infinite bound": (
        {f"{FLAT}/clipping_bound": [1, float("inf")]},
        ["sweeps.flat.clipping_bound[1]: found .inf; allowed: a finite number"],
    ),
    "negative bound": (
        {f"{FLAT}/clipping_bound": [-0.5, 1]},
        ["sweeps.flat.clipping_bound[0]: found -0.5; allowed: above 0"],
    ),
    "delta of 2": ({"privacy": {"delta": 2.0}}, ["privacy.delta: found 2.0; allowed: below 1"]),
    "no repeats": ({f"{FLAT}/seeds": 0}, ["sweeps.flat.seeds: found 0; allowed: above 0"]),
    "geometric grid of one": (
        {f"{FLAT}/learning_rate/count": 1},
        ["sweeps.flat.learning_rate.count: found 1; allowed: at least 2"],
    ),
    "geometric grid that falls": (
        {f"{FLAT}/learning_rate/last": 0.0001},
        ["sweeps.flat.learning_rate.last: found 0.0001; allowed: above first, which is 0.001"],
    ),
    "B > N": (
        {f"{FLAT}/batch_size": [64, 2000, "full"]},
        [
            "sweeps.flat.batch_size: found 2000; allowed: below 1347, which is the training set of "
            "digits, or full for all of it"
        ],
    ),
    "B = N as a number": (
        {f"{FLAT}/batch_size": [64, 1347]},
        ["sweeps.flat.batch_size: found 1347; allowed: below 1347, ... or full for all of it"],
    ),
    # order and repetition
    **{
        f"unsorted {key}": (
            {f"{FLAT}/{key}": values},
            [f"sweeps.flat.{key}: found {flow}; allowed: sorted from small to large, but {after}"],
        )
        for key, values, flow, after in (
            ("clipping_bound", [1, 0.1], "[1, 0.1]", "0.1 follows 1"),
            ("epsilon", [8, 1], "[8, 1]", "1 follows 8"),
            ("learning_rate", [0.1, 0.01], "[0.1, 0.01]", "0.01 follows 0.1"),
            ("epochs", [4, 2], "[4, 2]", "2 follows 4"),
            ("batch_size", [256, 64, "full"], '[256, 64, "full"]', "64 follows 256"),
        )
    },
    "full not last": (
        {f"{FLAT}/batch_size": ["full", 64]},
        ['sweeps.flat.batch_size: found ["full", 64]; allowed: full as the last entry, once ...'],
    ),
    "full twice": (
        {f"{FLAT}/batch_size": ["full", "full"]},
        [
            'sweeps.flat.batch_size: found ["full", "full"]; allowed: full as the last entry, once ...'
        ],
    ),
    "epsilon twice": (
        {f"{FLAT}/epsilon": [1, 1]},
        ["sweeps.flat.epsilon: found [1, 1]; allowed: every value once, but 1 appears twice"],
    ),
    "epsilon twice, once as a fraction": (
        {f"{FLAT}/epsilon": [1, 1.0]},
        ["sweeps.flat.epsilon: found [1, 1.0]; allowed: every value once, but 1 appears twice"],
    ),
    # what does not go together
    "no clipping under a budget": (
        {f"{FLAT}/clipping_bound": "none"},
        [
            "sweeps.flat.clipping_bound: found none with epsilon [1, 8]; allowed: epsilon [.inf] "
            "only, because ..."
        ],
    ),
    "no clipping, with and without a budget": (
        {f"{FLAT}/clipping_bound": "none", f"{FLAT}/epsilon": [8, float("inf")]},
        [
            "sweeps.flat.clipping_bound: found none with epsilon [8, inf]; allowed: epsilon [.inf] ..."
        ],
    ),
    "scratch on pretrained weights": (
        {f"{FLAT}/method": "scratch"},
        [
            "sweeps.flat.method: found scratch (from scratch) with the pretrained backbone "
            "pretrained; allowed: a backbone with weights: {kind: random}"
        ],
    ),
    "images without a size": (
        {"datasets/digits/image_size": DELETE},
        ["datasets.digits.image_size: missing; allowed: height and width of images in pixels"],
    ),
    "text without a tokenizer": (
        {
            "datasets/notes": {
                key: NOTES[key] for key in NOTES if key not in ("tokenizer", "max_length")
            }
        },
        [
            "datasets.notes.max_length: missing; allowed: the number of tokens ...",
            "datasets.notes.tokenizer: missing; allowed: ...none is defined",
        ],
    ),
    "text from images": (
        {"datasets/digits/kind": "text", **READER, "datasets/digits/tokenizer": "reader"},
        ["datasets.digits.kind: found text; allowed: image, ...sklearn-digits holds", *["..."] * 3],
    ),
    "images with a tokenizer": (
        {**READER, "datasets/digits/tokenizer": "reader"},
        ["datasets.digits.tokenizer: found reader; allowed: nothing (images)", "...", "..."],
    ),
    "a tokenizer for another library": (
        {"backbones/random/tokenizer": {"kind": "file", "path": "tokenizer.json"}},
        ["backbones.random.tokenizer: found one; allowed: with library transformers only"],
    ),
    "a network for text without a tokenizer": (
        {"backbones/random/library": "transformers"},
        ["backbones.random.tokenizer: missing; allowed: ...hub...file...train..."],
    ),
    "a vocabulary of images": (
        {**READER, "backbones/reader/tokenizer/dataset": "digits"},
        ["backbones.reader.tokenizer.dataset: found digits (images); allowed: texts"],
    ),
    "pretraining of an image backbone on texts": (
        {**READER, "backbones/pretrained/weights/dataset": "notes"},
        [
            "backbones.pretrained.weights.dataset: found notes (texts in the tokens of reader); "
            "allowed: what the backbone reads"
        ],
    ),
    "texts for an image backbone": (
        {**READER, f"{FLAT}/dataset": "notes"},
        ["sweeps.flat.dataset: found notes (texts in the tokens of reader); allowed: ..."],
    ),
    "texts in the tokens of another backbone": (
        {
            **READER,
            "backbones/random": {**READER["backbones/reader"], "tokenizer": OTHER},
            f"{FLAT}/dataset": "notes",
            f"{FLAT}/backbone": "random",
        },
        ["sweeps.flat.dataset: found notes (texts in the tokens of reader); allowed: ..."],
    ),
    "pretraining on the private dataset": (
        {"backbones/pretrained/weights/dataset": "digits"},
        [
            "sweeps.flat.dataset: found digits, which went into the weights of pretrained without "
            "privacy; allowed: another dataset, or epsilon [.inf]",
            "sweeps.automatic.dataset: ...",
        ],
    ),
    "a vocabulary of the private dataset": (
        {**READER, f"{FLAT}/dataset": "notes", f"{FLAT}/backbone": "reader"},
        ["sweeps.flat.dataset: found notes, which went into the tokenizer of reader ..."],
    ),
    # names of other sections
    "unknown dataset": (
        {f"{FLAT}/dataset": "digit"},
        ['sweeps.flat.dataset: found "digit"; did you mean digits? allowed: digits, letters'],
    ),
    "unknown backbone": (
        {f"{FLAT}/backbone": "vit"},
        ['sweeps.flat.backbone: found "vit"; allowed: random, pretrained'],
    ),
    "unknown method": (
        {f"{FLAT}/method": "flim"},
        ['sweeps.flat.method: found "flim"; did you mean film? allowed: film, scratch, lora'],
    ),
    "unknown public dataset": (
        {"backbones/pretrained/weights/dataset": "glyphs"},
        ['backbones.pretrained.weights.dataset: found "glyphs"; ...allowed: digits, letters'],
    ),
    "unknown tokenizer": (
        {**READER, "datasets/notes/tokenizer": "bert"},
        ['datasets.notes.tokenizer: found "bert"; allowed: reader'],
    ),
    "figure of an unknown dataset": (
        {"figures/map/panels/0/dataset": "digit"},
        [
            '...: map: panels[0].dataset: found "digit"; did you mean digits? allowed: main, large, ...'
        ],
    ),
    "figure of what no sweep trains": (
        {f"figures/map/panels/0/{part}": name for part, name in LETTERS.items()},
        [
            "...: map: panels[0]: no sweep trains Random with LoRA on Letters; allowed: "
            "digits_pretrained_film"
        ],
    ),
    "figure of an unknown bound": (
        {"figures/map/panels/0/clipping_bound": 7},
        ["...: map: panels[0].clipping_bound: found 7; allowed ... 0.1, 1, 10"],
    ),
    "figure of C where there is none": (
        {"figures/curve/panels/0/clipping_bound": "automatic"},
        ["...: curve: panels[0].lines[0].clipping_bound: found automatic; allowed: numbers ..."],
    ),
    "line of an unknown epsilon": (
        {"figures/curve/panels/0/lines/0/epsilon": [8, 0.25]},
        ["...: curve: panels[0].lines[0].epsilon: found 0.25; allowed ... 1, 8"],
    ),
    "figure of an unknown batch size": (
        {"figures/map/panels/0/batch_size": 128},
        ["...: map: panels[0].batch_size: found 128; allowed ... 64, 256, full"],
    ),
    "table of unknown epochs": (
        {"tables/compared/entries/0/epochs": 32},
        ["...: compared: entries[0].epochs: found 32; allowed ... 2, 4"],
    ),
    "figure of an unknown word": (
        {"figures/map/panels/0/epsilon": "lose"},
        ['...: Panel: epsilon: found "lose"; allowed: loose, tight, common or all or ...'],
    ),
    "caption with an unknown word": (
        {"figures/map/caption": "On {datset}."},
        ['...: map: caption: found "datset"; did you mean dataset? allowed: dataset, ...'],
    ),
    "series whose members have one name": (
        {"figures/map/series": {"epsilon": [1.0, 8.0]}},
        ["...: map: found a target of the name map; allowed: a name that is unique"],
    ),
    "series of figures over a role of several names": (
        {"roles/methods/ranks": ["lora", "film"], "figures/map/series": {"method": "ranks"}},
        ["...: map.method: found ranks, which stands for lora and film; allowed: one name, ..."],
    ),
    "figure of a role of several names": (
        {"roles/methods/ranks": ["lora", "film"], "figures/map/panels/0/method": "ranks"},
        ["...: map: panels[0].method: found ranks, ...; allowed: one name, or each=('method',)"],
    ),
    "series of a table that selects nothing": (
        {
            "tables/data": {
                **{"family": "datasets", "section": "Data", "caption": "Data."},
                "series": {"epsilon": "all"},
            }
        },
        [
            "figures.py, line ...: data: epsilon: found all; allowed: numbers (a datasets selects no cells)"
        ],
    ),
    "figure and table of one name": (
        {"tables/map": copy.deepcopy(SMALL["tables"]["compared"])},
        ["...: found 2 targets of the name map; allowed: one"],
    ),
    # roles
    "unknown role": (
        {"roles/datasets/mian": "digits"},
        ["roles.datasets.mian: unknown key; did you mean main? allowed: main, large, ..."],
    ),
    "role of an unknown backbone": (
        {"roles/backbones/strong": "vit"},
        ['roles.backbones.strong: found "vit"; allowed: random, pretrained'],
    ),
    "neighbours that are not in the grid": (
        {
            "roles/neighbours": {"film": [0.1, 2, 10]},
            "figures/map/panels/0/clipping_bound": "neighbours",
        },
        ["roles.neighbours.film: found 2; allowed (digits_pretrained_film): 0.1, 1, 10"],
    ),
    "sweeps that disagree about a cell": (
        {"sweeps/again": {**SMALL["sweeps"]["flat"], "epsilon": [8, 9], "seeds": 3}},
        [
            "sweeps.again.seeds: found 3, and 2 in sweeps.flat, which has the cell "
            "digits_pretrained_film/eps8_epochs2_B64_C0.1 too; allowed: the same in both, or grids "
            "that share no cell"
        ],
    ),
    "problems whose names read the same": (
        {
            "backbones/pretrained_film": SMALL["backbones"]["random"],
            "methods/film_x": {"kind": "film"},
            "methods/x": {"kind": "film"},
            "sweeps/one": {**SMALL["sweeps"]["flat"], "method": "film_x"},
            "sweeps/two": {**SMALL["sweeps"]["flat"], "backbone": "pretrained_film", "method": "x"},
        },
        [
            "sweeps.two: its cells would lie in digits_pretrained_film_x/, as those of sweeps.one, ..."
        ],
    ),
    # what is pinned
    "branch for a revision": (
        {"backbones/pretrained/weights": {"kind": "hub", "id": "timm/vit", "revision": "main"}},
        [
            'backbones.pretrained.weights.revision: found "main"; '
            "allowed: a commit, which is 40 hexadecimal digits"
        ],
    ),
    "repository without an owner": (
        {"datasets/digits/source": {"kind": "hub", "id": "cifar10"}},
        ['datasets.digits.source.id: found "cifar10"; allowed: owner/name'],
    ),
    # several at once: each is named
    "mistakes in several places": (
        {"title": 3, f"{FLAT}/epsilon": [-1], "methods/lora/rank": 0},
        [
            "title: found 3; allowed: text",
            "methods.lora.rank: found 0; allowed: above 0",
            "sweeps.flat.epsilon[0]: found -1; allowed: above 0",
        ],
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_message_names_key_value_and_what_is_allowed(tmp_path: Path, mistake: str) -> None:
    edits, expected = MISTAKES[mistake]
    found = complaints(tmp_path, edits)
    assert len(found) == len(expected), found
    for line, pattern in zip(found, expected, strict=True):
        assert re.fullmatch(re.escape(pattern).replace(r"\.\.\.", ".*"), line), line


def test_the_small_study_itself_is_valid(tmp_path: Path) -> None:
    load_small(tmp_path, {})


@pytest.mark.parametrize("section", ["datasets", "backbones", "methods", "sweeps"])
@pytest.mark.parametrize(
    "name", ["../x", "a b;rm", "/etc", "", ".hidden", "-rf", "a/b", "a\n", "$(x)", "ä", "{x}", "a*"]
)
def test_names_that_a_path_or_a_shell_could_misread(
    tmp_path: Path, section: str, name: str
) -> None:
    copied = copy.deepcopy(next(iter(SMALL[section].values())))
    found = complaints(tmp_path, {section: SMALL[section] | {name: copied}})
    shown = name.replace("\n", "\\n")
    assert f'{section}: found the name "{shown}"; allowed: {NAMES}' in found[0]


@pytest.mark.parametrize(
    "name", ["a", "0", "cifar100-10pct_vit-tiny_film", "full_C40.03", "A_b.c-d"]
)
def test_names_that_are_fine(tmp_path: Path, name: str) -> None:
    sweeps = SMALL["sweeps"] | {name: SMALL["sweeps"]["flat"]}
    assert name in load_small(tmp_path, {"sweeps": sweeps}).sweeps


def test_a_number_is_no_name(tmp_path: Path) -> None:
    sweeps = SMALL["sweeps"] | {8: SMALL["sweeps"]["flat"]}
    assert complaints(tmp_path, {"sweeps": sweeps}) == [
        "sweeps: found the name 8; allowed: text",
    ]


def test_a_long_name_is_refused(tmp_path: Path) -> None:
    sweeps = SMALL["sweeps"] | {"x" * 101: SMALL["sweeps"]["flat"]}
    (found,) = complaints(tmp_path, {"sweeps": sweeps})
    assert found.endswith("allowed: at most 100 characters")


def test_many_mistakes_fit_one_screen_and_are_counted(tmp_path: Path) -> None:
    sweeps = {f"sweep{i}": SMALL["sweeps"]["flat"] | {"dataset": "none"} for i in range(200)}
    *shown, rest = complaints(tmp_path, {"sweeps": sweeps, "figures": {}, "tables": {}})
    assert len(shown) >= 10
    assert rest == f"... and {200 - len(shown)} more"


def test_of_many_names_the_nearest_are_listed(tmp_path: Path) -> None:
    methods = {f"film{i}": SMALL["methods"]["film"] for i in range(200)} | SMALL["methods"]
    (found,) = complaints(tmp_path, {"methods": methods, "figures/map/panels/0/method": "film_17"})
    assert 'found "film_17"; did you mean film17? allowed: film17, ' in found
    assert found.endswith(f"... ({len(methods) + 6 - 12} more)")  # six roles, twelve shown


def test_a_long_value_is_shortened(tmp_path: Path) -> None:
    (found,) = complaints(tmp_path, {f"{FLAT}/engine": "x" * 1000})
    assert len(found) < 180
    assert "xxx...; allowed: auto, expanded" in found


def key_paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    children: Any = ()
    if isinstance(value, dict):
        children = value.items()
    elif isinstance(value, list):
        children = enumerate(value)
    for key, child in children:
        found += key_paths(child, (*path, key))
    return found


PLAIN = {key: value for key, value in SMALL.items() if key not in ("figures", "tables")}
JUNK = st.sampled_from(
    [
        *(None, True, -1, 0, 1.5, float("nan"), float("inf"), "", "x", "../x", "full", "none"),
        *([], [[]], [None], ["x", 1], {}, {"x": 1}, {8: 1}, {True: 1}, {None: 1}, {0.5: 1}),
    ]
)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(key_paths(PLAIN)), JUNK, st.sampled_from(["replace", "add", "drop"])
        ),
        min_size=1,
        max_size=4,
    )
)
def test_whatever_is_wrong_the_message_fits_one_screen(
    changes: list[tuple[tuple[Any, ...], Any, str]],
) -> None:
    study = copy.deepcopy(PLAIN)
    for (*above, last), junk, action in changes:
        place: Any = study
        try:
            for key in above:
                place = place[key]
            if action == "drop":
                del place[last]
            elif action == "add" and isinstance(place[last], dict):
                place[last] |= junk if isinstance(junk, dict) else {"extra": junk}
            else:
                place[last] = copy.deepcopy(junk)
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took that place away
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "study.yaml"
        path.write_text(dumped(study))
        try:
            load_study(path)
        except StudyError as error:
            assert mistakes(error)


def test_lists_of_names_are_cut_after_five() -> None:
    assert shorten([]) == "nothing"
    assert shorten("abcde") == "a, b, c, d, e"
    assert shorten(range(17)) == "0, 1, 2, 3, 4 and 12 more"
    assert len(shorten(["x" * 30_000_000] * 9)) < 1100


def test_what_a_library_says_is_cut() -> None:
    assert brief(ValueError("one\ntwo")) == "one\ntwo"
    long = brief(RuntimeError("\n".join(["k" * 999] * 8)))
    assert long.endswith("k...\n... and 3 more lines") and len(long) < 1100
