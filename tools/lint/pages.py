"""Checks what pages name: links, files, programs, targets of make, variables, functions, settings and keys exist.

Usage: pages.py PAGE...   prints "page:line: what" for each finding and exits 1 if there is any.
"""

import functools
import pathlib
import re
import subprocess
import sys

FOLDERS = "bench|bindings|data|docs|examples|include|kernels|mk|src|tests|tools|train"
PATH = re.compile(r"(?<![\w./$-])((?:" + FOLDERS + r")/[\w./-]*[\w/])(?![\w*$<{-])")
LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]+)?\)")
PROGRAM = re.compile(r"(?<![\w./<-])(?:build/bin/)?epx-([a-z]+)(?![\w.-])")
VARIABLE = re.compile(r"(?<![\w])EPX_[A-Z0-9_]*[A-Z0-9]\b(?!\*)")
QUOTED = re.compile(r"`([^`]+)`")
NAME = re.compile(r"(?:[a-z0-9]+_)+[a-z0-9]+")
CODE = {".c", ".h", ".cu", ".cuh", ".py", ".sh", ".mk", ".txt", ".json", ".pml"}
# A transport's name may stand in front of a setting; NAME stands for any of them.
OWN = re.compile(r"^EPX_(?:NAME|POOLED_WAVE|RAGGED|RING|WORST_CASE)_")


@functools.cache
def words():
    """Every identifier of the code, and those of the pages' own C programs."""
    files = subprocess.run(["git", "ls-files"], capture_output=True, text=True).stdout.split()
    files = files or [p.as_posix() for p in pathlib.Path(".").rglob("*") if not p.parts[0].startswith("build")]
    found = set()
    for name in files:
        path = pathlib.Path(name)
        if (path.suffix in CODE or path.name == "Makefile") and path.is_file() and name != "tools/lint/pages.py":
            found.update(re.findall(r"\w+", path.read_text(errors="replace")))
    for page in sys.argv[1:]:
        for block in re.findall(r"(?ms)^```c$(.*?)^```$", pathlib.Path(page).read_text()):
            found.update(re.findall(r"\w+", block))
    return found


@functools.cache
def targets():
    text = "".join(p.read_text() for p in [pathlib.Path("Makefile"), *pathlib.Path("mk").glob("*.mk")])
    return set(re.findall(r"(?m)^([a-z][a-z0-9_.-]*):", text))


@functools.cache
def anchors(page):
    heads = re.findall(r"(?m)^#+ (.*)$", page.read_text())
    return {"#" + re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def program_exists(name):
    return any(pathlib.Path(folder, "main.c").is_file() for folder in (name, f"bench/{name}", f"tools/{name}"))


def code_of(text):
    """The page's lines with what is code in them: fenced and indented blocks whole, else what is quoted."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
            continue
        whole = fenced or line.startswith("    ")
        yield number, line, [line] if whole else QUOTED.findall(line), whole


def check_line(page, line, pieces, whole):
    for link, anchor in [] if whole else LINK.findall(line):
        target = page.parent / link if link else page
        if re.match(r"[a-z]+:", link):
            continue
        if not target.exists():
            yield f"a link to {link}, which is not there"
        elif anchor and anchor not in anchors(target):
            yield f"{target} has no heading for {anchor}"
    for path in PATH.findall(line):
        if not pathlib.Path(path.rstrip("/")).exists() and not any(pathlib.Path(".").glob(path.rstrip("/") + ".*")):
            yield f"{path} is not there"
    for name in PROGRAM.findall(line):
        if not program_exists(name):
            yield f"there is no program epx-{name}"
    for name in VARIABLE.findall(line):
        if name not in words() and OWN.sub("EPX_", name) not in words():
            yield f"nothing reads or declares {name}"
    for piece in pieces:
        for target in re.findall(r"(?:^|&& |; )make ([a-z][a-z-]*)(?=$|[ ;])", piece.strip()):
            if target not in targets():
                yield f"make has no target {target}"
        for name in [] if whole else re.findall(r"(?<![\w./<-])" + NAME.pattern + r"(?![\w/])", piece):
            if name not in words():
                yield f"no code has the name {name}"


def main():
    findings = 0
    for name in sys.argv[1:]:
        page = pathlib.Path(name)
        for number, line, pieces, whole in code_of(page.read_text()):
            for what in check_line(page, line, pieces, whole):
                print(f"{name}:{number}: {what}")
                findings += 1
    return 1 if findings else 0


sys.exit(main())
