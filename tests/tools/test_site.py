"""The documentation site: it is read in hospitals without a network, on paper-wide screens and on phones."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).parents[2]


def build(root: Path, site: Path) -> "subprocess.CompletedProcess[str]":
    """`make docs`, into another folder."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "site"
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_no_page_loads_anything_from_a_network(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 25
    for page in pages:
        loaded = re.findall(r'<(?:script|img|link|iframe)[^>]*(?:src|href)="?(https?:[^">]*)', page.read_text())
        assert not loaded, page


def test_formulas_stand_beside_the_code_that_computes_them(site: Path) -> None:
    formulas = (ROOT / "docs" / "method.md").read_text().count("$$") / 2
    assert formulas > 10
    page = (site / "method.html").read_text()
    assert page.count('<math xmlns="http://www.w3.org/1998/Math/MathML" display="block"') == formulas
    assert "arithmatex" not in page
    text = re.sub(r"<[^>]+>", "", page)
    for line in (
        "h_prime = self.attend(h)",
        "    w = m_s.softmax(dim=-1)",
        "return -log_w[head, breast, view, z, proposal]",
    ):
        assert line in text


def test_every_piece_is_described(site: Path) -> None:
    page = (site / "api.html").read_text()
    for name in (
        "predict.api.load",
        "model.detector.Detector",
        "model.fusion.WeightedAverage",
        "data.datasets.find_reader",
    ):
        assert f'id="mm3d.{name}"' in page


def test_search_and_phones(site: Path, browser: "Browser") -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844})
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for name in ("index", "method", "api", "data", "notebooks/first_exam"):
        page.goto(f"file://{site}/{name}.html")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, name  # nothing is cut off at the right
    wide = browser.new_page(viewport={"width": 1400, "height": 900})
    wide.goto(f"file://{site}/notebooks/first_exam.html")
    assert wide.evaluate("[...document.images].every(image => image.naturalWidth > 100)")
    wide.fill("input[name=query]", "operating point")
    wide.wait_for_selector(".md-search-result__item")
    assert asked
    assert all(url.startswith(("file:", "data:")) for url in asked)


def test_a_dead_link_or_missing_code_fails_the_build(tmp_path: Path) -> None:
    for name in ("docs", "tools", "src", "mkdocs.yml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md"):
        source = ROOT / name
        shutil.copytree(source, tmp_path / name) if source.is_dir() else shutil.copy(source, tmp_path / name)
    page = tmp_path / "docs" / "report.md"
    dead = "[gone](gone.md), [part](data.md#gone), [file](../src/mm3d/gone.py)\n\n<!-- code: mm3d.model.head Gone -->\n"
    page.write_text(f"{page.read_text()}\n{dead}")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    for said in ("gone.md", "#gone", "there is no src/mm3d/gone.py", "mm3d.model.head has no Gone"):
        assert said in done.stderr
