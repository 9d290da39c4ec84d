"""Architecture rules: import layers, a single attention implementation, short files, few dependencies."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.paths import ROOT

PACKAGE = ROOT / "manyheads"
FILES = sorted(PACKAGE.rglob("*.py"))

# from the lowest layer to the highest: a package imports from lower layers only
LAYERS = [
    ("errors",), ("files", "versions"), ("displays",), ("calls",), ("core",), ("models", "inference"),
    ("generation", "interop", "analysis"), ("directory",), ("export",), ("runs",), ("tasks",),
    ("service", "sklearn"), ("cli",), ("__main__",),
]  # fmt: skip
ASIDE = ("data", "training")  # import no model, nor each other; used by runs, tasks and the layers above
FACADE = "__init__"  # manyheads/__init__.py hands out names of any layer, when asked

EXTRAS = (
    "babel", "conllu", "ctranslate2", "datasets", "gguf", "google.protobuf", "huggingface_hub", "llama_cpp", "llvmlite",
    "matplotlib", "numba", "openvino", "pandas", "peft", "prometheus_client", "pyarrow", "pytest", "sacremoses",
    "scipy", "sentencepiece", "sklearn", "starlette", "tensorboard", "transformers", "uvicorn",
)  # fmt: skip


def allowed(package: str) -> set[str]:
    if package in ASIDE or package == "results":
        # training runs on the machine that core/runtime.py knows
        core = ["core"] if package == "training" else []
        return {package, "errors", "files", "versions", "calls", "core.config", *core}
    level = next((i for i, packages in enumerate(LAYERS) if package in packages), None)
    assert level is not None, f"manyheads/{package} is in no layer: add it to LAYERS"
    below = {name for packages in LAYERS[:level] for name in packages} | {package, "core.config", "errors"}
    if level > LAYERS.index(("directory",)):
        below |= set(ASIDE)
    if package == "directory":
        below |= {"training"}  # to say of a run that it is not finished yet
    return below | {"results"} if package in ("tasks", "cli") else below


def imported(tree: ast.AST) -> Iterator[str]:
    """The packages of manyheads that a file names in imports, type-checking and function-local ones included.

    `core.config`, the base of the data's settings, imports only the standard library: a package by itself.
    """
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            module = node.module or ""
            names = [f"manyheads.{a.name}" for a in node.names] if module == "manyheads" else [module]
        for name in names:
            if name.startswith("manyheads."):
                yield "core.config" if name.startswith("manyheads.core.config") else name.split(".")[1]


def room_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def forbidden(file: Path, tree: ast.AST) -> set[str]:
    packages = set(imported(tree)) - {"__version__"}
    return set() if room_of(file) == FACADE else packages - allowed(room_of(file))


def test_imports_point_down_the_layers() -> None:
    found = {file: forbidden(file, ast.parse(file.read_text(encoding="utf-8"))) for file in FILES}
    assert {str(file.relative_to(PACKAGE)): packages for file, packages in found.items() if packages} == {}


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("core/x.py", "import manyheads.models.transformer"),
        ("data/x.py", "from manyheads.core import masks"),
        ("training/x.py", "from manyheads import models"),
        ("models/x.py", "def f():\n    from manyheads.data.text.store import TokenStore"),
        ("interop/x.py", "import manyheads.generation"),
        ("runs/x.py", "from manyheads.tasks import registry"),
    ],
)
def test_the_import_test_detects_violations(file: str, line: str) -> None:
    assert forbidden(PACKAGE / file, ast.parse(line))


def imported_modules(tree: ast.AST, modules: set[str]) -> set[str]:
    """Return the modules of the package that a file imports, for type checkers only and inside functions included.

    An import of a module from its package counts as an import of the package, too.
    """
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (names & modules) | {node.module}
    return found & modules


def test_there_are_no_import_cycles() -> None:
    trees = {
        ".".join(("manyheads", *file.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): file
        for file in FILES
    }
    modules = set(trees)
    imports = {name: imported_modules(ast.parse(file.read_text()), modules) - {name} for name, file in trees.items()}
    while leaves := [name for name, others in imports.items() if not others & imports.keys()]:
        for name in leaves:
            del imports[name]
    while roots := imports.keys() - set().union(*imports.values()):  # modules that only lead to a circle
        for name in roots:
            del imports[name]
    assert not imports, f"these modules import each other in a circle: {sorted(imports)}"


@pytest.mark.parametrize("package", ["core", "data"])
def test_the_lowest_layers_import_only_declared_modules(package: str) -> None:
    roots = set()
    for file in (PACKAGE / package).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                roots |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                roots.add((node.module or "").split(".")[0])
    others = roots - set(sys.stdlib_module_names) - {"manyheads"}
    if package == "core":
        assert others == {"torch"}
    else:
        assert "torch" not in others


# functions that turn scores into weights over what is not keys: matrices of a stem's mixture, convolutions, layers
NO_ATTENTION = {
    "core/experts.py": {"Router.forward"},
    "models/elmo.py": {"Elmo.forward"},
    "models/local_attention.py": {"AttentionStem.forward"},
    "models/selective_kernel.py": {"BranchAttention.weights"},
    "models/vit.py": {"ViT.fuse"},
}


def normalizations(tree: ast.AST, outer: str = "") -> Iterator[tuple[str, str]]:
    """Yield (qualified name of the function, name that it uses) for every softmax and every fused attention kernel.

    The gradient of a softmax is no normalization.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield from normalizations(node, f"{outer}.{node.name}".removeprefix("."))
            continue
        name = getattr(node, "attr", getattr(node, "id", "")) if isinstance(node, ast.expr) else ""
        is_fused = name.startswith(("scaled_dot_product", "flex_attention"))
        if outer and (is_fused or ("softmax" in name.lower() and "backward" not in name)):
            yield outer, name
        yield from normalizations(node, outer)


def test_attention_is_written_once() -> None:
    """Attention weights are normalized in a single function, and a fused kernel is called in a single place.

    Model code contains no other normalization, except for the functions in NO_ATTENTION.
    """
    kernels, normalizing = set(), set()
    for file in FILES:
        for function, name in normalizations(ast.parse(file.read_text(encoding="utf-8"))):
            where = str(file.relative_to(PACKAGE))
            if "softmax" not in name.lower():
                kernels.add((where, function))
            elif where.startswith(("core/", "models/")) and function not in NO_ATTENTION.get(where, ()):
                normalizing.add((where, function))
    assert kernels == {("core/attention.py", "_AttentionMap.fused")}
    assert normalizing == {("core/attention.py", "_normalize")}


@pytest.mark.parametrize(
    "line", ["F.softmax(scores, -1)", "scores.softmax(-1)", "nn.Softmax(-1)(scores)", "scaled_dot_product_attention(q)"]
)
def test_a_second_attention_would_be_detected(line: str) -> None:
    assert list(normalizations(ast.parse(f"def attend(scores):\n    return {line}")))


def test_files_are_short_and_uniquely_named() -> None:
    tests = sorted((ROOT / "tests").rglob("*.py"))
    lengths = {str(file): len(file.read_text(encoding="utf-8").splitlines()) for file in [*FILES, *tests]}
    assert {name: n for name, n in lengths.items() if n > 400} == {}
    assert not [file for file in FILES if file.name == "utils.py"]


def test_functions_are_short() -> None:
    lengths: dict[str, int] = {}
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = node.body[0].end_lineno - node.body[0].lineno + 1 if ast.get_docstring(node) else 0  # type: ignore[operator]
                lengths[f"{file.name}:{node.name}"] = (node.end_lineno or 0) - node.lineno + 1 - docstring
    assert {name: length for name, length in lengths.items() if length > 60} == {}


def patches(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that write into the `__dict__` of an object, or assign a function to an attribute of another one.

    A class assigns its functions in its methods, to `self`.
    """
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            into_dict = isinstance(target, ast.Subscript) and getattr(target.value, "attr", "") == "__dict__"
            is_function = isinstance(node.value, ast.Lambda) or getattr(node.value, "id", "") in functions
            of_another = isinstance(target, ast.Attribute) and getattr(target.value, "id", "") != "self"
            if into_dict or (of_another and is_function):
                yield node.lineno


def test_no_method_is_patched() -> None:
    found = {
        str(file.relative_to(PACKAGE)): list(patches(ast.parse(file.read_text(encoding="utf-8")))) for file in FILES
    }
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line", ["m.__dict__['step'] = fast", "m.step = lambda x: x", "def fast(x): ...\nm.step = fast"]
)
def test_a_patched_method_would_be_detected(line: str) -> None:
    assert list(patches(ast.parse(line)))


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_every_module_imports_with_core_dependencies() -> None:
    modules = [".".join(("manyheads", *f.relative_to(PACKAGE).with_suffix("").parts)) for f in FILES]
    for extra in ("manyheads.inference.", "manyheads.service."):  # optional imports: they need Numba or Starlette
        modules = [m for m in modules if not m.startswith(extra) or m == f"{extra}__init__"]
    generators = {f"manyheads.data.embedded.{name}" for name in ("phrases", "languages", "tags")}  # imported with Babel
    modules = [m for m in modules if m not in {*generators, "manyheads.sklearn"}]
    names = [m.removesuffix(".__init__") for m in modules if not m.endswith("__main__")]
    done = python(
        f"import sys, importlib\nfor name in {EXTRAS!r}: sys.modules[name] = None\n"
        f"for name in {names!r}: importlib.import_module(name)"
    )
    assert done.returncode == 0, done.stderr


def test_importing_the_package_is_light() -> None:
    done = python(
        "import sys, manyheads, manyheads.cli; print([m for m in ('torch', 'numpy', 'yaml') if m in sys.modules])"
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_recipes_are_listed_without_torch() -> None:
    done = python("import sys; from manyheads.cli import main; main(['recipes']); print('torch' in sys.modules)")
    assert done.stdout.splitlines()[-1] == "False", done.stderr


def test_the_package_exposes_only_its_public_names() -> None:
    import manyheads
    from manyheads.core import editing, recording

    assert manyheads.record is recording.record
    assert manyheads.edit is editing.edit
    assert callable(manyheads.load)
    assert callable(manyheads.train)
    assert set(manyheads.__all__) == set(dir(manyheads))
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        manyheads.lod  # noqa: B018
