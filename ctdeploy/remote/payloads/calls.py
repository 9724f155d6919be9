"""Calls in Python code: what a `call:` pattern asks for, and which calls of a file match. Stdlib only, Python 3.9."""

from __future__ import annotations

import ast
import warnings
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

# Two keywords of one function that set the same thing: where one is asked for, the other has to be readable too.
# torch.compile: a mode is a name for a set of options (torch._inductor.list_mode_options).
SAME_THING = {"torch.compile": ("mode", "options")}


class Call(NamedTuple):
    """The call that a `call:` pattern asks for."""

    name: str
    positional: Tuple[Any, ...]
    keywords: Tuple[Tuple[str, Any], ...]

    @property
    def last_name(self) -> str:
        return self.name.rpartition(".")[2]


def read_call(source: str, expression: str) -> Call:
    """Read the expression of a `call:` pattern; `source` is the pattern in errors. Raises ValueError."""
    try:
        tree = ast.parse(expression, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        detail = getattr(error, "msg", None) or str(error)
        raise ValueError("{!r}: not a Python call: {}".format(source, detail)) from None
    func, args, keywords = (tree.func, tree.args, tree.keywords) if isinstance(tree, ast.Call) else (tree, [], [])
    name = _dotted(func)
    if name is None:
        raise ValueError("{!r}: expected call:NAME(KEYWORD=VALUE), with a dotted name".format(source))
    try:
        positional = tuple(ast.literal_eval(arg) for arg in args)
        named = tuple((keyword.arg or "", ast.literal_eval(keyword.value)) for keyword in keywords)
    except ValueError:
        raise ValueError("{!r}: the arguments must be literals, or ... for any value".format(source)) from None
    if any(not keyword for keyword, _ in named):
        raise ValueError("{!r}: ** cannot be asked for".format(source))
    return Call(name, positional, named)


def _dotted(node: ast.AST) -> Optional[str]:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value)
        return None if base is None else "{}.{}".format(base, node.attr)
    return None


class Names:
    """What the names of a file may stand for, and the calls in it."""

    def __init__(self, tree: ast.Module) -> None:
        self.nodes = list(ast.walk(tree))
        self.imported: Dict[str, Set[str]] = {}
        self.assigned: Dict[str, Set[str]] = {}
        self.stars: Set[str] = set()
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    self.imported.setdefault(alias.asname or top, set()).add(alias.name if alias.asname else top)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    if alias.name == "*":
                        self.stars.add(node.module)
                    full = "{}.{}".format(node.module, alias.name)
                    self.imported.setdefault(alias.asname or alias.name, set()).add(full)
        assigns = [node for node in self.nodes if isinstance(node, ast.Assign)]
        for _ in range(3):  # a = torch.compile; b = a; c = b
            for node in assigns:
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        self.assigned.setdefault(target.id, set()).update(self.meanings(node.value))

    def meanings(self, node: Optional[ast.AST]) -> Set[str]:
        """The dotted names that an expression may stand for; none where it is no plain reference."""
        if isinstance(node, ast.Name):
            return self.imported.get(node.id, {node.id}) | self.assigned.get(node.id, set())
        if isinstance(node, ast.Attribute):
            return {"{}.{}".format(base, node.attr) for base in self.meanings(node.value)}
        if isinstance(node, ast.IfExp):
            return self.meanings(node.body) | self.meanings(node.orelse)
        if isinstance(node, ast.BoolOp):
            return {name for value in node.values for name in self.meanings(value)}
        if isinstance(node, ast.NamedExpr):
            return self.meanings(node.value)
        return set()

    def calls(self, wanted: Call) -> Iterable[Tuple[int, str]]:
        """(line, "") for each call that matches, (line, why) for each that cannot be decided."""
        found = set()
        for node in self.nodes:
            if isinstance(node, ast.Call):
                args = node.args
                names = self.meanings(node.func)
                if "functools.partial" in names and args:
                    names, args = self.meanings(args[0]), args[1:]
                by_star = isinstance(node.func, ast.Name) and self._by_star(node.func.id, wanted.name)
                if wanted.name not in names and not by_star:
                    continue
                matches, why = _compare_call(wanted, args, node.keywords)
                if matches:
                    star = "{} may come from an import of *".format(wanted.name)
                    found.add((node.lineno, why or ("" if wanted.name in names else star)))
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                for decorator in node.decorator_list:
                    if wanted.name in self.meanings(decorator) and not wanted.positional and not wanted.keywords:
                        found.add((decorator.lineno, ""))
        return sorted(found)

    def _by_star(self, name: str, wanted: str) -> bool:
        return name not in self.imported and any("{}.{}".format(module, name) == wanted for module in self.stars)


def _compare_call(wanted: Call, args: Sequence[ast.expr], keywords: Sequence[ast.keyword]) -> Tuple[bool, str]:
    """(False, "") if the call cannot match, (True, "") if it does, (True, why) if that cannot be told."""
    whys = []
    for index, value in enumerate(wanted.positional):
        if any(isinstance(arg, ast.Starred) for arg in args[: index + 1]):
            whys.append("the arguments come from *")
        elif index >= len(args):
            return False, ""
        else:
            verdict = _equals(args[index], value)
            if verdict is False:
                return False, ""
            if verdict is None:
                whys.append("argument {} is not a literal".format(index + 1))
    for name, value in wanted.keywords:
        why = _compare_keyword(name, value, keywords)
        if why is None:
            others = [each for each in SAME_THING.get(wanted.name, ()) if each != name]
            if name in SAME_THING.get(wanted.name, ()):
                why = next((w for other in others if (w := _unreadable(other, keywords))), None)
        if why is None:
            return False, ""
        whys.append(why)
    return True, next((why for why in whys if why), "")


def _compare_keyword(name: str, value: Any, keywords: Sequence[ast.keyword]) -> Optional[str]:
    """None if the keyword is absent or differs, "" if it is equal, else why that cannot be told."""
    for keyword in keywords:
        given = keyword.value
        if keyword.arg == name:
            verdict = _equals(given, value)
            return {True: "", False: None}.get(verdict, "{} is not a literal".format(name))  # type: ignore[arg-type]
    for keyword in keywords:
        given = keyword.value
        if keyword.arg is None:
            if not isinstance(given, ast.Dict) or not all(isinstance(key, ast.Constant) for key in given.keys):
                return "{} may come from **".format(name)
            for key, item in _items(given):
                if isinstance(key, ast.Constant) and key.value == name:
                    return _compare_keyword(name, value, [ast.keyword(arg=name, value=item)])
    return None


def _unreadable(name: str, keywords: Sequence[ast.keyword]) -> Optional[str]:
    for keyword in keywords:
        if keyword.arg == name:
            try:
                ast.literal_eval(keyword.value)
            except (ValueError, TypeError):
                return "{} is not a literal".format(name)
    return None


def _equals(node: ast.expr, value: Any) -> Optional[bool]:
    """Whether the expression is `value`; None if that cannot be told from the text. ... stands for any value."""
    if value is Ellipsis:
        return True
    if isinstance(node, ast.IfExp):
        verdicts = {_equals(node.body, value), _equals(node.orelse, value)}
        return verdicts.pop() if len(verdicts) == 1 else None
    if isinstance(node, ast.Dict) and isinstance(value, dict):
        return _dict_has(node, value)
    try:
        given = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    return type(given) is type(value) and bool(given == value)


def _items(node: ast.Dict) -> List[Tuple[Optional[ast.expr], ast.expr]]:
    return [(key, node.values[index]) for index, key in enumerate(node.keys)]


def _dict_has(node: ast.Dict, wanted: Dict[Any, Any]) -> Optional[bool]:
    verdict: Optional[bool] = True
    open_ended = any(not isinstance(key, ast.Constant) for key in node.keys)
    for key, value in wanted.items():
        items = [item for k, item in _items(node) if isinstance(k, ast.Constant) and k.value == key]
        equal = _equals(items[-1], value) if items else (None if open_ended else False)
        if equal is False:
            return False
        verdict = verdict if equal else None
    return verdict


def parse(text: str) -> ast.Module:
    """`ast.parse` without the warnings that old string escapes print."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)
