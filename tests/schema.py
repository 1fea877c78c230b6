# SPDX-License-Identifier: Apache-2.0
# Holds what kda-dump --json writes against tools/kda-dump.schema.json. Also proves that the schema says something: the
# same documents with any one member removed, renamed or of another type are refused.
#   python3 tests/schema.py KDA_DUMP SCHEMA BUNDLE...
import copy
import json
import subprocess
import sys

try:
    from jsonschema import Draft202012Validator
except ImportError:
    print("skipped: python3-jsonschema is not installed")
    sys.exit(77)

program, schema_path, *bundles = sys.argv[1:]
with open(schema_path, encoding="utf-8") as file:
    schema = json.load(file)
Draft202012Validator.check_schema(schema)
validator = Draft202012Validator(schema)


def dump(arguments, status):
    run = subprocess.run([program, *arguments], stdout=subprocess.PIPE, check=False)
    if run.returncode != status:
        sys.exit(f"{arguments}: exit status {run.returncode}, expected {status}")
    return json.loads(run.stdout)


def objects(value, path=()):
    """Every object in a document, by its path; of an array only the first and the last element."""
    if isinstance(value, dict):
        yield path
        for key, member in value.items():
            yield from objects(member, (*path, key))
    elif isinstance(value, list) and value:
        for i in {0, len(value) - 1}:
            yield from objects(value[i], (*path, i))


def mutants(document):
    optional = {"heads", "modes"}
    for path in list(objects(document)):
        inner = document
        for step in path:
            inner = inner[step]
        for key in inner:
            for change in ("removed", "renamed", "retyped"):
                if change == "removed" and (key in optional or (path[:1] == ("routes",) and key == "state")):
                    continue
                copied = copy.deepcopy(document)
                target = copied
                for step in path:
                    target = target[step]
                old = target.pop(key)
                if change == "renamed":
                    target[key + "_"] = old
                elif change == "retyped":
                    target[key] = None
                yield f"{'/'.join(map(str, path))}/{key} {change}", copied


route = ["route", "--op", "recurrent", "--cuda", "13.0", "--sms", "152", "--n", "8", "--json", "--cc"]
documents = []
for bundle in bundles:
    documents.append(dump([bundle, "--json"], 0))
    documents.append(dump([bundle, *route, "12.0"], 1))
documents.append(dump([bundles[0], *route, "10.3"], 0))

count = 0
for document in documents:
    for error in validator.iter_errors(document):
        sys.exit(f"refused: {error.json_path}: {error.message}\n{error.context}")
# A mutant costs a validation of the whole document, so the bundle's lists are cut to their ends.
small = [documents[1], documents[-1]]
whole = documents[0]
for key in ("bodies", "cubins", "routes"):
    whole[key] = [whole[key][0], whole[key][-1]]
for document in [*small, whole]:
    for what, mutant in mutants(document):
        count += 1
        if validator.is_valid(mutant):
            sys.exit(f"accepted although {what}")
print(f"{len(documents)} documents accepted, {count} mutants refused")
