# The structs of epx._structs against the C compiler's. SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

import pytest
from epx import _structs

TREE = Path(__file__).resolve().parents[3]


def program() -> str:
    lines = ["#include <epx/comm.h>", "#include <epx/epx.h>", "#include <epx/info.h>", "#include <stdio.h>", "int main(void) {"]
    for name, kind in _structs.SIZED.items():
        lines.append(f'    printf("{name} %zu\\n", sizeof({name}));')
        for field, *_ in kind._fields_:
            member = f"(({name} *)0)->{field}"
            lines.append(f'    printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), sizeof({member}));')
    return "\n".join([*lines, "    return 0;", "}", ""])


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    folder = tmp_path_factory.mktemp("layout")
    (folder / "layout.c").write_text(program(), encoding="utf-8")
    compiler = [os.environ.get("CC", "cc"), "-std=c11", f"-I{TREE / 'include'}", "layout.c", "-o", "layout"]
    subprocess.run(compiler, cwd=folder, check=True)
    printed = subprocess.run(["./layout"], cwd=folder, check=True, capture_output=True, text=True).stdout
    return {line.split()[0]: [int(word) for word in line.split()[1:]] for line in printed.splitlines()}


@pytest.mark.parametrize("name", sorted(_structs.SIZED))
def test_layout(layout: dict[str, list[int]], name: str) -> None:
    kind = _structs.SIZED[name]
    assert layout[name] == [ctypes.sizeof(kind)]
    for field, *_ in kind._fields_:
        seen = getattr(kind, field)
        assert layout[f"{name}.{field}"] == [seen.offset, seen.size], field


def test_every_error_code_has_an_exception() -> None:
    from epx.errors import BY_STATUS

    header = (TREE / "include/epx/status.h").read_text(encoding="utf-8")
    codes = {int(line.split("=")[1].strip(" ,")) for line in header.splitlines() if "EPX_ERR_" in line and "=" in line}
    assert codes == set(BY_STATUS)
