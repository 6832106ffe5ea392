"""Hash 20 Newsgroups with the author of each post, for studies/units.yaml.

    python -m benchmarks.findings.units_data ../shared/data/20_newsgroups build/units

The folder has the two parquet files of SetFit/20_newsgroups (raw posts with headers). An author is the
address in the line "From:" of a header. The published split has the same authors on both sides, so all posts
are split anew: three tenths of the authors, by a hash of their address, are the test set. Inputs are the
hashed n-grams of the first 1,024 bytes of a post, scaled to length 1 (`dpsweep.models.featurisers`).
"""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F

from benchmarks.common import command_line
from dpsweep.models.featurisers import HashedNgrams

BYTES, LIMIT = 1024, 4


def authors(texts: pd.Series) -> pd.Series:
    """Return the author of each post: the address in its line "From:", or that line."""
    line = texts.str.extract(r"(?mi)^From:\s*(.*)$")[0]
    address = line.str.extract(r"([\w.+\-=!%]+@[\w.\-]+)")[0]
    return address.fillna(line).str.lower()


def in_test_set(author: str) -> bool:
    """Return whether a hash of an author's address is among the first three tenths."""
    first = hashlib.sha256(author.encode()).digest()[:8]
    return int.from_bytes(first, "big") / 2**64 < 0.3


@torch.no_grad()
def ngrams(texts: list[str]) -> np.ndarray[Any, Any]:
    """Return the hashed n-grams of texts, at length 1: float32, shape (N, 1024)."""
    network, found = HashedNgrams(num_classes=2, dimension=1024), []
    for text in texts:
        tokens = torch.tensor([list(text.encode()[:BYTES])])
        found.append(F.normalize(network.count(tokens)))
    return torch.cat(found).numpy()


def main() -> None:
    """Write train.npz, limited.npz (at most four posts of an author) and test.npz."""
    parser = command_line(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    posts = pd.concat(pd.read_parquet(file) for file in sorted(options.data.glob("*.parquet")))
    posts = posts.assign(author=authors(posts["text"])).reset_index(drop=True)
    embeddings = ngrams(posts["text"].tolist())
    test = posts["author"].map(in_test_set)
    shuffled = posts.sample(frac=1, random_state=0)
    early = shuffled.groupby("author").cumcount().reindex(posts.index) < LIMIT
    options.output.mkdir(parents=True, exist_ok=True)
    for name, kept in (("train", ~test), ("limited", ~test & early), ("test", test)):
        counts = posts[kept]["author"].value_counts()
        np.savez(
            options.output / f"{name}.npz",
            embeddings=embeddings[kept],
            labels=posts[kept]["label"].to_numpy("int64"),
            author=posts[kept]["author"].to_numpy(str),
        )
        print(
            f"{name}: {counts.sum():,} posts of {len(counts):,} authors, {(counts == 1).sum():,} with one,"
        )
        print(f"  {(counts >= LIMIT).sum():,} with {LIMIT} or more, {counts.max()} at most")


if __name__ == "__main__":
    main()
