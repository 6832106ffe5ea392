"""The JSON schema of a study file, for editors and readers.

``python -m dpsweep.study.schema > workflow/schemas/config.schema.yaml`` writes it anew.
"""

import argparse
import sys
from typing import Any

import yaml

from dpsweep.study.study import Study

_HEADER = (
    "# Every section and key of a study, and what is allowed in it. Made from dpsweep.study by\n"
    "# `python -m dpsweep.study.schema > workflow/schemas/config.schema.yaml`; do not edit.\n"
)


def study_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a whole study, overlays merged."""
    schema = Study.model_json_schema()
    for model in (schema, *schema["$defs"].values()):
        for field in model.get("properties", {}).values():
            if "description" in field:
                field["description"] = " ".join(field["description"].split())
    # pydantic's schema allows names that do not match the pattern; a study refuses them.
    for section in schema["properties"].values():
        if "patternProperties" in section:
            section["additionalProperties"] = False
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def schema_text() -> str:
    """Return the text of the YAML file with the schema in the repository."""
    return _HEADER + yaml.safe_dump(study_schema(), sort_keys=False, allow_unicode=True, width=100)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    sys.stdout.write(schema_text())
