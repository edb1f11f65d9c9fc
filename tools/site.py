"""What `make docs` does beyond MkDocs: pages that are not in docs/, formulas, code beside formulas, and notebooks.

MkDocs calls the functions `on_…` (mkdocs.yml). The pages in docs/ are also read where they are, so nothing in them
needs this program: README.md becomes the first page, links that leave docs/ become links to such pages, and the API
page is made from the table of pieces in docs/python.md.
"""

import ast
import logging
import posixpath
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter

ROOT = Path(__file__).parents[1]
LOG = logging.getLogger("mkdocs.mm3d")  # a warning here fails the build
# Files outside docs/ that are pages, and their names on the site.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "src/mm3d/shipped/README.md": "weights.md",
    "src/mm3d/shipped/films/README.md": "films.md",
}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)#:\s]+)(#[^)]*)?\)")
CODE = re.compile(r"<!-- code: (\S+) (\S+) -->")
PIECES = re.compile(r"\| `from (\S+) import ([^`]*)`")
FORMULA = re.compile(r'<(span|div) class="arithmatex">(?:\\\(|\\\[)(.*?)(?:\\\)|\\\])</\1>', re.DOTALL)
SHIM = '<script src="https://unpkg.com/iframe-worker/shim"></script>'
TYPE = re.compile(r"[A-Z{\"(]|(str|int|float|bool|dict|list|tuple|callable|sequence)\b")  # how a type begins


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made here."""
    for source, name in PAGES.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text(encoding="utf-8")))
    files.append(File.generated(config, "api.md", content=_make_api()))
    for notebook in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        for name, content in _convert_notebook(notebook):
            files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Put code in its places, and turn links that leave docs/ to pages of the site."""
    name = page.file.src_uri
    source = next((source for source, target in PAGES.items() if target == name), f"docs/{name}")
    markdown = CODE.sub(lambda match: _quote_code(match[1], match[2]), markdown)
    parts = re.split(r"^(```.*?^```)", markdown, flags=re.DOTALL | re.MULTILINE)
    parts[::2] = [LINK.sub(lambda match: _point(match, source, name), part) for part in parts[::2]]
    return "".join(parts)


def on_page_content(html: str, **_: Any) -> str:
    """Formulas as MathML, which browsers show without a program."""
    return FORMULA.sub(lambda match: _to_mathml(match[2], block=match[1] == "div"), html)


def on_post_build(config: MkDocsConfig) -> None:
    """Nothing is loaded from a network: docs/site.js does what the theme would load for searches in a folder."""
    for path in Path(config.site_dir).rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        if SHIM not in text:
            LOG.warning("%s does not load %s; look at what the theme loads instead.", path.name, SHIM)
        place = "../" * (len(path.relative_to(config.site_dir).parts) - 1)
        path.write_text(text.replace(SHIM, f'<script src="{place}site.js"></script>'), encoding="utf-8")


def _point(match: re.Match[str], source: str, name: str) -> str:
    """A link of a file of the repository as a link of its page on the site."""
    mark, text, target, part = match[1], match[2], match[3], match[4] or ""
    wanted = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if name.startswith("notebooks/") and target.startswith(Path(name).stem):
        return match[0]  # a picture of the notebook
    page = PAGES.get(wanted) or (wanted.removeprefix("docs/") if wanted.startswith("docs/") else None)
    if page is not None:
        page = re.sub(r"\.ipynb$", ".md", page)
        return f"{mark}[{text}]({posixpath.relpath(page, posixpath.dirname(name) or '.')}{part})"
    if not (ROOT / wanted).exists():
        LOG.warning("%s: there is no %s", source, wanted)
    return text  # a file of the repository that is no page: the site does not know where the repository is


def _quote_code(module: str, name: str) -> str:
    """The source of a function, class or method, as it is now."""
    path = ROOT / "src" / Path(*module.split(".")).with_suffix(".py")
    text = path.read_text(encoding="utf-8")
    node: Any = ast.parse(text)
    for part in name.split("."):
        node = next((one for one in node.body if getattr(one, "name", None) == part), None)
        if node is None:
            LOG.warning("%s has no %s", module, name)
            return ""
    start = min([node.lineno, *(one.lineno for one in node.decorator_list)])
    lines = text.splitlines()[start - 1 : node.end_lineno]
    code = textwrap.dedent("\n".join(lines))
    return f"```python\n{code}\n```"


def _to_mathml(latex: str, block: bool) -> str:
    latex = latex.replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">")
    mathml = convert(latex.strip(), display="block" if block else "inline")
    mathml = mathml.replace("\\&amp;", "&").replace("\\&", "&").replace("M&M", "M&amp;M")
    if "\\" in mathml:
        LOG.warning("latex2mathml does not know a command in %s", latex)
    return mathml


def _make_api() -> str:
    """A page with the docstrings of the pieces that docs/python.md lists."""
    text = "# API\n\nThe pieces that [keep their names](python.md#pieces-to-build-on), from their docstrings.\n"
    pieces = [("mm3d", "Model, PredictedExam, load, PredictSettings, InputError")]
    pieces += PIECES.findall((ROOT / "docs" / "python.md").read_text(encoding="utf-8"))
    init = (ROOT / "src" / "mm3d" / "__init__.py").read_text(encoding="utf-8")
    places = dict(re.findall(r'^    "(\w+)": "(mm3d\.\S+)",$', init, re.MULTILINE))
    for module, names in pieces:
        text += f"\n## {module}\n"
        for name in names.split(", "):
            text += f"\n::: {places[name] if module == 'mm3d' else module}.{name}\n"
    return text


def _convert_notebook(path: Path) -> Iterator[tuple[str, str | bytes]]:
    """A notebook as a page, and its pictures."""
    body, resources = MarkdownExporter().from_filename(str(path))
    name = f"notebooks/{path.stem}"
    for picture, content in resources["outputs"].items():
        body = body.replace(f"]({picture})", f"]({path.stem}-{picture})")
        yield f"{name}-{picture}", content
    yield f"{name}.md", f"{body}\n\n*This page is a [notebook]({path.name}) that the tests run.*\n"


class Prose(griffe.Extension):
    """Many of our docstrings say `name : what it is` in one line, where numpydoc has the type. The types are in the
    signature, so what begins like a sentence is moved to the place of the description."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = "\n".join(_move_prose(obj.docstring.value.splitlines()))


def _move_prose(lines: list[str]) -> Iterator[str]:
    section = ""
    for number, line in enumerate(lines):
        if number + 1 < len(lines) and set(lines[number + 1]) == {"-"}:
            section = line
        match = re.fullmatch(r"([\w, *]+) : (.*)", line)
        if section in ("Parameters", "Attributes") and match and not TYPE.match(match[2]):
            yield match[1]
            yield f"    {match[2]}"
        else:
            yield line
