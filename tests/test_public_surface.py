"""
The shape of the library: what is public, and which layer knows which.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pydoc
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import timeline_trio

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(timeline_trio.__file__).parent
LAYERS = ("_model", "_store", "_cache", "_record", "_manager", "_timeline")
PUBLIC_MODULES = (
    "timeline_trio",
    "timeline_trio.model",
    "timeline_trio.store",
    "timeline_trio.testing",
    "timeline_trio.testing.servers",
)


def run_time_imports(tree: ast.AST) -> Iterator[ast.ImportFrom]:
    """
    Yield the relative imports of a module, those inside of functions included, those for type checkers left out.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and node.level:
            yield node
        yield from run_time_imports(node)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_the_layers_below_it(layer: str) -> None:
    above = LAYERS[LAYERS.index(layer) + 1 :]
    for path in sorted((ROOT / layer).glob("*.py")):
        for node in run_time_imports(ast.parse(path.read_text())):
            first = (node.module or "").partition(".")[0]
            assert node.level == 1 or first not in above, f"{path.name} imports {node.module}, which is above it"


def test_the_model_knows_neither_trio_nor_any_io() -> None:
    for path in sorted((ROOT / "_model").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = {(node.module or "").partition(".")[0]}
            else:
                continue
            assert not names & {"trio", "os", "io", "socket", "sqlite3", "threading", "time"}, f"{path.name}: {names}"


@pytest.mark.parametrize("name", PUBLIC_MODULES)
def test_all_names_exactly_what_a_public_module_offers(name: str) -> None:
    module = importlib.import_module(name)
    offered = {
        each
        for each, value in vars(module).items()
        if not each.startswith("_") and not inspect.ismodule(value) and each not in {"annotations", "publish"}
    }
    assert sorted(module.__all__) == sorted(offered)


@pytest.mark.parametrize("name", PUBLIC_MODULES)
def test_every_public_name_has_a_docstring(name: str) -> None:
    module = importlib.import_module(name)
    for each in module.__all__:
        value = getattr(module, each)
        if inspect.isclass(value) or inspect.isroutine(value):
            assert inspect.getdoc(value), each


@pytest.mark.parametrize("name", PUBLIC_MODULES)
def test_help_can_show_every_public_name(name: str) -> None:
    module = importlib.import_module(name)
    for each in module.__all__:
        value = getattr(module, each)
        assert isinstance(value, str) or pydoc.render_doc(value)
    assert pydoc.render_doc(module)


def test_errors_live_where_they_are_public() -> None:
    for each in timeline_trio.__all__:
        value = getattr(timeline_trio, each)
        if inspect.isclass(value) and issubclass(value, Exception):
            assert "._" not in value.__module__, each


def test_importing_the_library_imports_no_driver() -> None:
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not {alias.name for alias in node.names} & {"sqlite3", "asyncmy", "psycopg", "trio_asyncio"}, (
                    path
                )
