"""`mm3d view`: who may see a report, and what else of the computer."""

import http.client
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from mm3d.cli import main


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The program as a user starts it, and the address it prints."""
    out = tmp_path / "OUT"
    (out / "sr").mkdir(parents=True)
    (out / "report.html").write_text("the report")
    (out / "sr" / "result.dcm").write_bytes(b"DICM")
    (out / ".hidden").write_text("half made")
    (tmp_path / "secret").write_text("not of this folder")
    (out / "way-out").symlink_to(tmp_path / "secret")
    program = subprocess.Popen(
        [sys.executable, "-m", "mm3d", "view", str(out), "--no-browser"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout
    yield program, program.stdout.readline().strip()
    program.kill()
    program.communicate()


def get(address: str, path: str | None = None, host: str | None = None) -> tuple[int, bytes]:
    """The answer to a request whose path nobody tidies up on the way."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=20)
    connection.request("GET", parts.path if path is None else path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_only_the_folder_is_served_and_only_to_who_knows_the_address(
    served: tuple[subprocess.Popen[str], str],
) -> None:
    _, address = served
    assert urlsplit(address).hostname == "127.0.0.1"
    base = urlsplit(address).path.removesuffix("report.html")
    assert len(base) > 30
    assert get(address) == (200, b"the report")
    assert get(address, f"{base}sr/result.dcm") == (200, b"DICM")
    for path in ("/", "/report.html", "/guessed/report.html", base[:-2] + "/report.html"):
        assert get(address, path) == (404, b"")
    for name in (
        "",
        "sr",
        ".hidden",
        "way-out",
        "../secret",
        "%2e%2e/secret",
        "sr/../../secret",
        "/etc/passwd",
        "a%00b",
    ):
        assert get(address, base + name) == (404, b""), name
    port = urlsplit(address).port
    assert get(address, host=f"attacker.example:{port}") == (404, b"")
    assert get(address, host=f"localhost:{port}")[0] == 200


def test_nobody_else_on_the_network_can_connect(served: tuple[subprocess.Popen[str], str]) -> None:
    _, address = served
    assert get(address)[0] == 200
    with pytest.raises(OSError, match=r"refused"):
        get(address.replace("127.0.0.1", "127.0.0.2"))


def test_ctrl_c_ends_it_without_a_fuss(served: tuple[subprocess.Popen[str], str]) -> None:
    program, address = served
    assert get(address)[0] == 200
    os.kill(program.pid, signal.SIGINT)
    out, errors = program.communicate(timeout=30)
    assert (program.returncode, errors) == (0, "")
    assert "report.html" not in out  # what was asked for is not logged


def test_several_reports_are_listed_with_what_was_found(tmp_path: Path) -> None:
    from threading import Thread

    from mm3d.output.report.serve import Server

    for name in ("a", "b&<i>", "c", "d"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.html").write_text(name)
    (tmp_path / "a" / "run.json").write_text('{"version": 1, "score": 0.826, "marked": 2}')
    (tmp_path / "c" / "run.json").write_text('{"version": 1, "score": "<script>", "marked": 1}')
    (tmp_path / "d" / "run.json").write_text(
        '{"version": 1, "score": 0, "marked": 1, "problems": ["L CC: it is cut off."]}'
    )
    with Server(tmp_path) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        status, page = get(server.address)
        assert status == 200
        assert b'<a href="a/report.html">a</a>: score 0.83, 2 marks</li>' in page
        assert b'<a href="b%26%3Ci%3E/report.html">b&amp;&lt;i&gt;</a></li>' in page
        assert b'<a href="c/report.html">c</a></li>' in page
        assert b'<a href="d/report.html">d</a>: score 0.00, 1 mark, 1 problem</li>' in page
        assert get(server.address, urlsplit(server.address).path + "b%26%3Ci%3E/report.html") == (200, b"b&<i>")
        server.shutdown()


def test_an_exam_without_a_report_is_told_beside_the_one_that_has_one(tmp_path: Path) -> None:
    """Who opens the only report would think that it was the only exam."""
    from threading import Thread

    from mm3d.output.report.serve import Server

    (tmp_path / "good").mkdir()
    (tmp_path / "good" / "report.html").write_text("the report")
    (tmp_path / "run.json").write_text(
        '{"version": 1, "failures": {"bad1": "it has no view.", "b&d": "it has no view."}}'
    )
    with Server(tmp_path) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        _, page = get(server.address)
        assert b'<a href="good/report.html">good</a>' in page
        assert b"<p>Could not be predicted, run.json says why: b&amp;d, bad1.</p>" in page
        server.shutdown()


def test_what_cannot_be_shown_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(tmp_path / "nowhere")]) == 1
    assert "nowhere is not a folder; give the one that 'mm3d predict' wrote." in capsys.readouterr().err
    assert main(["view", str(tmp_path)]) == 1
    assert "has no report.html; give the folder that 'mm3d predict' wrote." in capsys.readouterr().err
    (tmp_path / "report.html").write_text("the report")
    assert main(["view", str(tmp_path), "--no-browser", "--port", "99999"]) == 1
    assert "Port 99999 cannot be used" in capsys.readouterr().err
