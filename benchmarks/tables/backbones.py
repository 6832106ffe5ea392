"""Which networks can be trained, and how."""

from typing import Any

from benchmarks.tables.markdown import texts


def backbones(result: dict[str, Any]) -> list[str]:
    """The engine of every network and method, or what the method does not find."""
    nothing = {"film": "no normalisation layers", "lora": "no linear layers"}
    rows = [
        [
            f"`{row['network']}`" + (" (texts)" if row["library"] == "transformers" else ""),
            *(
                each.get("engine", nothing.get(name, "none"))
                for name, each in row["methods"].items()
            ),
        ]
        for row in result["rows"]
    ]
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    return [
        *texts(["network", "FiLM", "LoRA", "all parameters", "head"], rows),
        "",
        f"{len(rows)} networks, with {versions}.",
    ]
