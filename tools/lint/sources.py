"""Checks that need no compiler: who includes whom, sizes of files and functions, white space, left-over words.

Usage: sources.py FILE...   prints "file:line: what" for each finding and exits 1 if there is any.
"""

import fnmatch
import pathlib
import re
import sys

FILE_LINES = 800
FUNCTION_LINES = 80
CODE = {".c", ".h", ".cu", ".cuh"}
INCLUDE_PATHS = ["include", "src", "tests", "."]
# Put together from halves, so that this file does not find itself.
LEFT_OVER = re.compile(r"\b(" + "|".join(a + b for a, b in [("TO", "DO"), ("FIX", "ME"), ("XX", "X")]) + r")\b")


def read_layers():
    """The table as {"allow": [([left], [right])], "room": ..., "word": ..., ...}."""
    table = {"allow": [], "room": [], "word": [], "tree": [], "calls": []}
    for line in (pathlib.Path(__file__).parent / "layers.txt").read_text().splitlines():
        kind, _, rest = line.partition(" ")
        if kind in table:
            left, _, right = rest.partition("->")
            table[kind].append((left.split(), right.split()))
    return table


def below(path, folder):
    return path == folder or path.startswith(folder + "/")


def plain_code(text):
    """The text with comments, strings and characters blanked, lines kept."""
    pattern = r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
    return re.sub(pattern, lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)


def check_includes(path, text, layers):
    """The longest left folder that holds the file says which project folders it may include."""
    rules = [(len(left), rights) for lefts, rights in layers["allow"] for left in lefts if below(path, left)]
    allowed = max(rules)[1] if rules else []
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if not match:
            continue
        name = match.group(2)
        for headers, rooms in layers["room"]:
            if any(fnmatch.fnmatch(name, h) for h in headers) and not any(below(path, r) for r in rooms):
                yield number, f"<{name}> may be included in {' '.join(rooms)} only"
        bases = [str(pathlib.PurePath(path).parent)] + INCLUDE_PATHS
        found = [pathlib.Path(b, name) for b in bases if pathlib.Path(b, name).is_file()]
        if not found:
            if match.group(1) == '"':
                yield number, f'"{name}" is no header of this project'
            continue
        target = found[0].resolve().relative_to(pathlib.Path.cwd()).as_posix()
        own = str(pathlib.PurePath(path).parent)
        free = below(target, "include/epx") or str(pathlib.PurePath(target).parent) == own
        # A folder opens what lies directly in it; only "train" and "*" open what is below.
        opens = lambda rule: rule == "*" or fnmatch.fnmatch(target, rule) or \
            str(pathlib.PurePath(target).parent) == rule or (rule == "train" and below(target, rule))
        if not free and not any(opens(rule) for rule in allowed):
            yield number, f"{path} may not include {target}: tools/lint/layers.txt"


def check_circles(codes, layers):
    """In some folders files include each other in no circle (a source and the header of its name are one), in some
    sources call each other in none."""
    for kind, verb, arrows in ("tree", "include", includes_among), ("calls", "call", calls_among):
        patterns = [pattern for left, _ in layers[kind] for pattern in left]
        folders = sorted({str(pathlib.PurePath(path).parent) for path in codes})
        for folder in [f for f in folders if any(fnmatch.fnmatch(f, pattern) for pattern in patterns)]:
            inside = {p for p in codes if str(pathlib.PurePath(p).parent) == folder}
            if circle := find_circle(arrows(inside, codes)):
                first = min(p for p in inside if stem(p) == circle[0])
                names = " -> ".join(pathlib.PurePath(s).name for s in circle)
                yield first, f"files of {folder} {verb} each other in a circle: {names}"


def includes_among(inside, codes):
    above = {}
    for path in inside:
        names = re.findall(r'(?m)^#include "([^"]+)"', codes[path][0])
        targets = {t for n in names for b in INCLUDE_PATHS for t in [str(pathlib.PurePath(b, n))] if t in inside}
        above.setdefault(stem(path), set()).update({stem(t) for t in targets} - {stem(path)})
    return above


def calls_among(inside, codes):
    """Who names a function of another source, in a table or a call."""
    sources = [p for p in inside if p.endswith((".c", ".cu"))]
    definer = {name: stem(p) for p in sources for name in defined_functions(codes[p][1])}
    names = {p: set(re.findall(r"(?<!struct )\b\w+", codes[p][1])) & definer.keys() for p in sources}
    return {stem(p): {definer[n] for n in names[p]} - {stem(p)} for p in sources}


def find_circle(above):
    """[a, ..., a], or None."""
    # What leads nowhere any more goes, until nothing does; what is left stands in circles or above one.
    while leaves := [s for s, t in above.items() if not t]:
        above = {s: t - set(leaves) for s, t in above.items() if t}
    if not above:
        return None
    seen = [min(above)]
    while (after := min(above[seen[-1]])) not in seen:
        seen.append(after)
    return seen[seen.index(after):] + [after]


def defined_functions(code):
    """Names of the functions here that other sources can call."""
    heads = re.findall(r"(?m)^([A-Za-z_][\w \*]*?)[ \*](\w+)\([^;{}]*\)\s*\{", code)
    return [name for head, name in heads if not re.match(r"static\b|__global__|__device__|typedef\b", head)]


def stem(path):
    return str(pathlib.PurePath(path).with_suffix(""))


def check_words(path, code, layers):
    if below(path, "tests"):
        return
    for words, files in layers["word"]:
        if path in files:
            continue
        for number, line in enumerate(code.splitlines(), 1):
            for match in re.findall(r"\b(" + "|".join(words) + r")\b", line):
                yield number, f"{match} belongs in {' '.join(files)}"


def check_functions(code):
    """A brace at depth 0 after a closing parenthesis opens a function."""
    depth, start, head, opened = 0, 0, "", None
    line = 1
    for char in code:
        if char == "\n":
            line += 1
        if depth == 0 and char in ";}":
            head = ""
        elif depth == 0 and char != "{":
            if not head.strip():
                start = line
            head += char
        if char == "{":
            # extern "C" {...} is no level of its own
            if depth == 0 and re.search(r"extern\s*$", head):
                head = ""
                continue
            if depth == 0:
                head = re.sub(r"(?m)^\s*#.*$", "", head)
                opened = start if re.search(r"\)[\w\s]*$", head) and "=" not in head.split("(")[0] else None
            depth += 1
        elif char == "}" and depth > 0:
            depth -= 1
            if depth == 0:
                if opened is not None and line - opened + 1 > FUNCTION_LINES:
                    yield opened, f"this function has {line - opened + 1} lines, the limit is {FUNCTION_LINES}"
                head = ""


def check_text(path, text):
    tabs_belong = path.endswith(".mk") or path.endswith("Makefile")
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if line != line.rstrip():
            yield number, "white space at the end of the line"
        if "\t" in line and not tabs_belong:
            yield number, "a tab"
        if LEFT_OVER.search(line):
            yield number, f"left-over word {LEFT_OVER.search(line).group()}"
    if text and not text.endswith("\n"):
        yield len(lines), "no newline at the end of the file"
    if len(lines) > FILE_LINES:
        yield len(lines), f"the file has {len(lines)} lines, the limit is {FILE_LINES}"


def main():
    layers = read_layers()
    findings = 0
    codes = {}
    for path in sys.argv[1:]:
        text = pathlib.Path(path).read_text(errors="replace")
        found = list(check_text(path, text))
        if pathlib.PurePath(path).suffix in CODE:
            code = plain_code(text)
            codes[path] = text, code
            found += check_includes(path, text, layers)
            found += check_words(path, code, layers)
            found += check_functions(code)
        for number, what in sorted(found):
            print(f"{path}:{number}: {what}")
        findings += len(found)
    for path, what in check_circles(codes, layers):
        print(f"{path}:1: {what}")
        findings += 1
    return 1 if findings else 0


sys.exit(main())
