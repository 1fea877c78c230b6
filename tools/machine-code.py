#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Static evidence: what the machine code of every image is made of, in one table.

    python3 tools/machine-code.py KDA_DUMP BUNDLE... > gen/machine.tsv
    python3 tools/machine-code.py --check gen/machine.tsv KDA_DUMP BUNDLE...

The first form needs nvdisasm on PATH (the wheel nvidia-cuda-nvdisasm). The second needs no tool: it holds registers and
stack of every image against the table, and refuses a table that is not of these images.
"""
import json
import math
import os
import re
import subprocess
import sys
import tempfile

# Of an SM, CC 9.0, 10.0 and 10.3 alike.
SM_REGISTERS, SM_WARPS, SM_CTAS, SM_SHARED, CTA_SHARED = 65536, 64, 32, 228 << 10, 1 << 10
REGISTER_UNIT, SHARED_UNIT = 8, 128  # per thread of a warp; bytes per CTA

# Column: what an instruction's name must match. An instruction counts in every column that it matches.
MIX = {
    "all": r"(?!NOP)",
    "ld128": r"LDG\b.*\.128",
    "ld": r"LDG\b(?!.*\.128)",
    "st128": r"STG\b.*\.128",
    "st": r"STG\b(?!.*\.128)",
    "shared": r"(LDS|STS)\b",
    "fma": r"FFMA2?\b",
    "add_mul": r"F(ADD|MUL)2?\b",
    "mufu": r"MUFU\b",
    "mma": r"HMMA\b",
    "shuffle": r"SHFL\b",
    "barrier": r"BAR\b",
    "local": r"(LDL|STL)\b",
}
FACTS = ["body", "target", "cubin", "registers", "stack", "shared", "threads", "ctas_per_sm", "warps_per_sm", "ctas"]
SMS = {"sm_90a": 132, "sm_100f": 148, "sm_100a": 148, "sm_103a": 152}  # H200, B200 and B300


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.decode().strip()}")
    return done.stdout


def ctas_per_sm(registers, threads, shared):
    """By registers, warps and shared memory."""
    warps = threads // 32
    per_warp = 32 * math.ceil(registers / REGISTER_UNIT) * REGISTER_UNIT
    per_cta = math.ceil((shared + CTA_SHARED) / SHARED_UNIT) * SHARED_UNIT
    return min(SM_CTAS, SM_WARPS // warps, SM_REGISTERS // per_warp // warps, SM_SHARED // per_cta)


def facts(dump, bundle):
    """Of every image of a bundle, in its order."""
    document = json.loads(run(dump, bundle, "--json"))
    bodies = {body["name"]: body for body in document["bodies"]}
    for cubin in document["cubins"]:
        body = bodies[cubin["body"]]
        shared = cubin["shared"] + body["smem"]
        ctas = ctas_per_sm(cubin["registers"], body["threads"], shared)
        yield [cubin["body"], cubin["target"], cubin["sha256"][:16], cubin["registers"], cubin["stack"], shared,
               body["threads"], ctas, ctas * body["threads"] // 32, ctas * SMS[cubin["target"]]]


def mix(dump, bundle, name, folder):
    path = os.path.join(folder, name + ".cubin")
    run(dump, bundle, "extract", name, "-o", path)
    text = run("nvdisasm", "-c", path).decode()
    names = re.findall(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", text, re.M)
    if not names:
        sys.exit(f"nvdisasm shows no instruction of {name}")
    return [sum(bool(re.match(pattern, n)) for n in names) for pattern in MIX.values()]


def write(dump, bundles):
    print("\t".join(FACTS + list(MIX)))
    with tempfile.TemporaryDirectory() as folder:
        for bundle in bundles:
            for row in facts(dump, bundle):
                print("\t".join(map(str, row + mix(dump, bundle, f"{row[0]}.{row[1]}", folder))))


def check(table, dump, bundles):
    with open(table, encoding="utf-8") as lines:
        rows = [line.rstrip("\n").split("\t") for line in lines]
    known = {(row[0], row[1]): dict(zip(rows[0], row)) for row in rows[1:]}
    failures, targets = [], set()
    for bundle in bundles:
        for row in facts(dump, bundle):
            targets.add(row[1])
            image, old = f"{row[0]}.{row[1]}", known.pop((row[0], row[1]), None)
            if old is None:
                failures.append(f"{image}: not in the table")
                continue
            for i in (3, 4):
                if row[i] > int(old[FACTS[i]]):
                    failures.append(f"{image}: {FACTS[i]} grew from {old[FACTS[i]]} to {row[i]}")
            if row[2] != old["cubin"]:
                failures.append(f"{image}: the table is of cubin {old['cubin']}, this is {row[2]}")
    failures += [f"{body}.{target}: in the table, but in no bundle" for body, target in known if target in targets]
    print("\n".join(failures[:20]))
    if failures:
        sys.exit(f"{table} is not of these images; once the reason is known: "
                 f"python3 tools/machine-code.py {dump} {' '.join(bundles)} > gen/machine.tsv")


if len(sys.argv) > 4 and sys.argv[1] == "--check":
    check(sys.argv[2], sys.argv[3], sys.argv[4:])
elif len(sys.argv) > 2 and sys.argv[1][0] != "-":
    write(sys.argv[1], sys.argv[2:])
else:
    sys.exit(__doc__)
