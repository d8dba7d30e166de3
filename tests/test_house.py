"""The house rules: which file may import which, how large files and functions may be, what lies at the top, and that
the package's face is what it says. `python -m tests.test_house` prints what is over the limits, as it is kept here."""

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tinygpt_jax as tg
from tests.faults import FAULTS, Fault, lost, plant

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(tg.__file__).parent
FACE = PACKAGE.name
FLOORS = (
    ("errors",),
    ("arguments",),
    ("config", "digits", "files", "measure", "reading", "runtime", "statistics"),
    ("checks", "edits", "markup", "reference"),
    ("ids",),
    ("params", "presets", "text"),
    ("memory", "model"),
    ("forward_pass", "runs"),
    ("sampling",),
    ("training",),
    ("diagnosis", "lab"),
    ("benchmark", "figures"),
    ("reporting",),
    ("study",),
    ("cli",),
    ("__init__", "__main__"),
)
"""Rooms from the ground up. A file imports from floors below its own and from its own room."""

FILE_LINES, FUNCTION_LINES, ARGUMENTS = 300, 40, 7
LARGE_FILES: dict[str, int] = {
    "tinygpt_jax/reference.py": 306,
}
"""Files that are larger all the same: they may only shrink. So it is below, with docstrings left out."""
LONG_FUNCTIONS: dict[str, int] = {}
MANY_ARGUMENTS: dict[str, int] = {
    "tinygpt_jax/model.py:multi_head_attention": 11,
    "tinygpt_jax/reference.py:multi_head_attention": 11,
}
"""Those that can be given by position; keyword-only ones are options."""


# Who imports whom


def modules(package):
    """Module name -> its file; the name of a folder stands for its __init__, but of the package's own."""
    found = {}
    for file in sorted(package.rglob("*.py")):
        parts = [package.name, *file.relative_to(package).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)] = file
    return found


def homes(known):
    """What the face offers -> the module where it lives, from the face's own table."""
    text = known[f"{FACE}.__init__"].read_text()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            return {name: f"{FACE}.{home}" for name, home in ast.literal_eval(node.value).items()}
    assert "import_module" not in text, "the face has no table of names and modules"
    return {}


def module_of(dotted, known):
    """The module that a dotted name is or lies in; None for anything else."""
    while dotted not in known and "." in dotted:
        dotted = dotted.rpartition(".")[0]
    return dotted if dotted in known else None


def by_name(text, known):
    """The module that a string names: "tinygpt_jax.lab.fills", "lab.fills" or "lab.fills:of_mean"."""
    if not re.fullmatch(r"\w+(\.\w+)+(:\w+)?|\w+:\w+", text):
        return None
    name = text.partition(":")[0]
    return next((one for one in (name, f"{FACE}.{name}") if one in known), None)


def imports(module, known):
    """Modules of the package that a file names: in imports at any depth, and in strings."""
    tree = ast.parse(known[module].read_text())
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    face = homes(known)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names if alias.name.split(".")[0] == FACE]
            yield from (module_of(name, known) or f"{FACE}.__init__" for name in named)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: imports are absolute"
            if node.module == FACE:
                wanted = [face.get(alias.name, f"{FACE}.{alias.name}") for alias in node.names]
                yield from filter(None, (module_of(name, known) for name in wanted))
            elif (node.module or "").startswith(FACE + "."):
                yield from {module_of(f"{node.module}.{alias.name}", known) for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield from filter(None, [by_name(node.value, known)])
        elif isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "import_module":
            yield from imported_by_call(module, node, known, face)


def imported_by_call(module, call, known, face):
    """What `import_module(...)` may bring: the module it names, or where the name is made up, all that it can be."""
    name = call.args[0]
    if isinstance(name, ast.Constant):
        yield from filter(None, [module_of(name.value, known)])
    elif module == f"{FACE}.__init__":
        yield from (module_of(home, known) for home in face.values())
    else:
        below = module.removesuffix(".__init__") + "."
        yield from (other for other in known if other.startswith(below))


@functools.cache
def graph(package):
    """Module -> the others that it imports."""
    known = modules(package)
    return {module: sorted(set(imports(module, known)) - {module}) for module in known}


def room(module):
    return module.split(".")[1]


def violations(edges):
    """Imports that do not lead down: (who, whom)."""
    top = len(FLOORS)  # a room that has no floor yet
    floor = {name: number for number, names in enumerate(FLOORS) for name in names}
    return [
        (module, other)
        for module, others in edges.items()
        for other in others
        if room(other) != room(module) and floor.get(room(other), top) >= floor.get(room(module), top)
    ]


def circles(edges):
    """Files that lead back to themselves by imports, each circle once: who imports whom, in turn."""
    found, done = [], set()

    def visit(module, path):
        if module in path:
            found.append([*path[path.index(module) :], module])
        elif module not in done:
            for other in edges[module]:
                visit(other, [*path, module])
            done.add(module)

    for module in edges:
        visit(module, [])
    return found


def test_every_room_has_its_floor():
    placed = [name for names in FLOORS for name in names]
    there = {room(module) for module in modules(PACKAGE)}
    assert len(set(placed)) == len(placed)
    assert sorted(there) == sorted(placed)


def test_imports_lead_down():
    assert violations(graph(PACKAGE)) == []


def test_no_file_leads_back_to_itself():
    assert circles(graph(PACKAGE)) == []


@pytest.fixture
def house(tmp_path):
    """Writes a package of the face's name from {file: text}, and gives its graph."""

    def build(files):
        for name, text in {"__init__.py": "", **files}.items():
            file = tmp_path / FACE / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return graph.__wrapped__(tmp_path / FACE)  # the files of one path change

    return build


TRAIN = {"training/loop.py": "def train(): ...\n", "training/__init__.py": ""}


@pytest.mark.parametrize(
    "text",
    [
        "from tinygpt_jax.training.loop import train",
        "from tinygpt_jax.training import loop",
        "import tinygpt_jax.training.loop",
        "def f():\n    from tinygpt_jax.training.loop import train",
        "def f():\n    return importlib.import_module('tinygpt_jax.training.loop')",
        "HOMES = ['training.loop:train']",
        "HOMES = {'train': 'training.loop'}",
        "from tinygpt_jax import train",
    ],
)
def test_an_import_from_above_is_seen_however_it_is_written(text, house):
    face = "_HOME = {'train': 'training.loop'}\n"
    edges = house({**TRAIN, "__init__.py": face, "model.py": text + "\n"})
    assert ("tinygpt_jax.model", "tinygpt_jax.training.loop") in violations(edges)


def test_what_is_no_import_is_not_taken_for_one(house):
    text = '"""As training.loop does."""\nfrom tinygpt_jax import __version__\nKEY = "training"\nEND = "loop.py"\n'
    assert violations(house({**TRAIN, "model.py": text})) == []


def test_a_circle_inside_a_folder_is_seen(house):
    files = {
        "lab/__init__.py": "", "lab/a.py": "from tinygpt_jax.lab.b import x\n", "lab/c.py": "",
        "lab/b.py": "from tinygpt_jax.lab import c\ndef f():\n    from tinygpt_jax.lab import a\n",
    }  # fmt: skip
    assert circles(house(files)) == [["tinygpt_jax.lab.a", "tinygpt_jax.lab.b", "tinygpt_jax.lab.a"]]
    files["lab/b.py"] = "from tinygpt_jax.lab import c\n"
    assert circles(house(files)) == []


def test_a_name_made_up_when_running_stands_for_all_that_it_can_be(house):
    files = {
        "cli/__init__.py": "def main(v): import_module(f'{__name__}.{v}')\n",
        "cli/eval.py": "import tinygpt_jax.cli\n",
    }
    assert circles(house(files)) == [["tinygpt_jax.cli", "tinygpt_jax.cli.eval", "tinygpt_jax.cli"]]


def test_nothing_in_the_package_imports_tests_or_experiments():
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
            assert not [name for name in names if name.split(".")[0] in ("tests", "experiments", "flax", "torch")], file


# How large files and functions are


def functions(file):
    """Every function of a file: its name with those around it, its lines without its docstring, its arguments."""

    def below(node, names):
        for child in ast.iter_child_nodes(node):
            name = [*names, child.name] if hasattr(child, "name") and hasattr(child, "body") else names
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield ".".join(name), code_lines(child), arguments(child, "class" if names else "")
            yield from below(child, name)

    yield from below(ast.parse(file.read_text()), [])


def code_lines(node):
    doc = node.body[0] if ast.get_docstring(node) else None
    return node.end_lineno - node.lineno + 1 - (doc.end_lineno - doc.lineno + 1 if doc else 0)


def arguments(node, inside):
    names = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
    return len(names) - (bool(inside) and names[:1] in (["self"], ["cls"]))


@functools.cache
def measured():
    """What is over the limits in the package and the experiments: files, functions, arguments."""
    files, lines, many = {}, {}, {}
    for file in [*sorted(PACKAGE.rglob("*.py")), *sorted((ROOT / "experiments").rglob("*.py"))]:
        name = f"{FACE}/{file.relative_to(PACKAGE)}" if PACKAGE in file.parents else str(file.relative_to(ROOT))
        if (length := len(file.read_text().splitlines())) > FILE_LINES:
            files[name] = length
        for function, code, given in functions(file):
            if code > FUNCTION_LINES:
                lines[f"{name}:{function}"] = code
            if given > ARGUMENTS:
                many[f"{name}:{function}"] = given
    return files, lines, many


@pytest.mark.parametrize(("which", "kept"), [(0, LARGE_FILES), (1, LONG_FUNCTIONS), (2, MANY_ARGUMENTS)])
def test_files_and_functions_are_small_and_those_that_are_not_only_shrink(which, kept):
    found = measured()[which]
    assert {name: size for name, size in found.items() if size > kept.get(name, 0)} == {}, "grown: make it smaller"
    assert {name: size for name, size in kept.items() if found.get(name) != size} == {}, "shrunk: write it so"


def test_what_is_large_is_seen(tmp_path):
    code = "\n".join(
        ["class A:", "    def f(self, a, b, *, c):", '        """D', '        d."""', "        x = 1"]
        + ["        x += 1"] * 9
    )
    (tmp_path / "a.py").write_text(f"{code}\n\n\nasync def g(a):\n    def h(b): ...\n")
    assert list(functions(tmp_path / "a.py")) == [("A.f", 11, 2), ("g", 2, 1), ("g.h", 1, 1)]


# What the suite is known to catch


def test_every_planted_fault_has_its_place_and_its_test():
    assert lost(FAULTS) == []
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 25
    for fault in FAULTS:
        file, _, name = fault.test.partition("::")
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(), fault.test


def test_a_fault_is_planted_where_its_text_stands_once(tmp_path):
    (tmp_path / FACE).mkdir()
    (tmp_path / FACE / "model.py").write_text("a = 1\nb = 2\n")
    fault = Fault("one more", "model.py", "b = 2", "b = 3", "test_model.py::test_it")
    assert lost([fault], tmp_path) == []
    plant(fault, tmp_path)
    assert (tmp_path / FACE / "model.py").read_text() == "a = 1\nb = 3\n"
    assert lost([fault], tmp_path) == ["one more: model.py has 'b = 2' 0 times"]
    assert len(lost([fault._replace(old="=")], tmp_path)) == 1


# What is documented


def test_links_lead_somewhere():
    for file in [ROOT / "README.md", *PACKAGE.rglob("*.md"), *(ROOT / "experiments").rglob("*.md")]:
        links = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```|`[^`\n]*`", "", file.read_text(), flags=re.DOTALL))
        for link in links:
            if not re.match(r"https?:|#", link):
                assert (file.parent / link.partition("#")[0]).exists(), f"{file}: {link}"


def test_the_readme_names_every_room():
    layout = (ROOT / "README.md").read_text().partition("## How the code is laid out")[2].partition("\n**")[0]
    named = {name.removesuffix("/").removesuffix(".py") for name in re.findall(r"`([\w/.]+)`", layout)}
    assert {name for names in FLOORS for name in names} - {"__init__", "__main__"} - named == set()


# The face


def test_the_face_of_the_package():
    for name in tg.__all__:
        assert getattr(tg, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'gpt_backward'"):
        _ = tg.gpt_backward


def test_importing_the_package_and_asking_for_help_load_no_jax():
    code = (
        "import sys, tinygpt_jax, tinygpt_jax.cli as cli; assert cli.main(['--help']) == 0;"
        "heavy = [m for m in ('jax', 'torch', 'orbax', 'matplotlib', 'tokenizers') if m in sys.modules];"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    for kept, over in zip(("LARGE_FILES", "LONG_FUNCTIONS", "MANY_ARGUMENTS"), measured(), strict=True):
        print(f"{kept}: dict[str, int] = {{")
        print("".join(f'    "{name}": {size},\n' for name, size in over.items()) + "}")
