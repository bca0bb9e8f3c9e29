"""Private names of torch stand in one file."""

import ast
from pathlib import Path

import rung

ROOT = Path(rung.__file__).parent
SHIM = ROOT / "run" / "torch_private.py"


def _chain(node: ast.AST) -> list[str]:
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [*names, node.id][::-1] if isinstance(node, ast.Name) else []


def _private(tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            parts = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Import):
            parts = [part for alias in node.names if alias.name.startswith("torch.") for part in alias.name.split(".")]
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            parts = _chain(node)
            parts = parts if parts[:1] == ["torch"] else []
        else:
            continue
        if any(part.startswith("_") and not part.startswith("__") for part in parts):
            found.append(".".join(parts))
    return found


def test_no_other_file_uses_private_names_of_torch():
    used = {
        str(path.relative_to(ROOT)): names
        for path in sorted(ROOT.rglob("*.py"))
        if path != SHIM and (names := _private(ast.parse(path.read_text(encoding="utf-8"))))
    }
    assert used == {}


def test_the_search_finds_them():
    code = "import torch._dynamo\nfrom torch.utils._pytree import tree_map\nfrom torch.utils import _device\ntorch._C"
    assert len(_private(ast.parse(code))) == 4
    assert len(_private(ast.parse(SHIM.read_text(encoding="utf-8")))) > 30
