"""`mm3d view`: who may see a report, and what else of the computer."""

import contextlib
import http.client
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import pytest

from mm3d.cli import main
from mm3d.output.report import serve
from mm3d.output.report.serve import MOST_WAITING, Server


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


@pytest.fixture
def many(tmp_path: Path) -> Iterator[Server]:
    """A server of two reports, in this process."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.html").write_bytes(name.encode() * 300_000)
    with Server(tmp_path) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server


def connect(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def report_path(server: Server) -> str:
    return urlsplit(server.address).path + "a/report.html"


def request(server: Server, path: str, host: str | None = None) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: {host or f'127.0.0.1:{server.port}'}\r\n\r\n".encode()


def read_all(connection: socket.socket) -> bytes:
    with connection, connection.makefile("rb") as answer:
        return answer.read()


def test_two_hundred_requests_at_once_are_all_answered(many: Server) -> None:
    """29 of them had no answer: five may wait to be accepted, and each took a thread."""
    connections = [connect(many) for _ in range(200)]
    for connection in connections:
        connection.sendall(request(many, report_path(many)))
    for connection in connections:
        assert read_all(connection).endswith(b"\r\n\r\n" + b"a" * 300_000)
    assert threading.active_count() < 50


def test_a_thousand_idle_clients_keep_nobody_waiting(many: Server) -> None:
    """They had a thread each. Now they have none, and the first of them are sent away."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limits[1]), limits[1]))  # the clients are in this process
    idle = [connect(many) for _ in range(1000)]
    try:
        assert get(many.address, report_path(many)) == (200, b"a" * 300_000)
        assert threading.active_count() < 50
        assert len(many.waiting) <= MOST_WAITING
        assert idle[0].recv(1) == b""  # it was sent away
    finally:
        for connection in idle:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_who_asks_slowly_is_sent_away(many: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "SECONDS_TO_ASK", 0.2)
    with connect(many) as slow:
        slow.sendall(b"GET /")
        assert slow.recv(1) == b""


def test_who_reads_slowly_does_not_hold_an_answer_for_ever(many: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "SECONDS_TO_SEND", 0.5)
    (many.folder / "a" / "report.html").write_bytes(bytes(30_000_000))  # more than the system holds back
    with connect(many) as slow:
        slow.sendall(request(many, report_path(many)))
        assert slow.recv(1) == b"H"
        assert slow.recv(1) == b"T"
        threading.Event().wait(2)
        received = 2
        with contextlib.suppress(ConnectionError):
            while part := slow.recv(1 << 20):
                received += len(part)
        assert received < 30_000_000


@pytest.mark.parametrize(
    "path",
    ["a" * 300, "a/" * 3000, "a" * 5000, "%00", "%ff%fe", "a/%2e%2e/%2e%2e/x", "loop", "unreadable", "http://[", "é"],
)
def test_strange_names_are_not_found_and_nothing_more(
    many: Server, path: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (many.folder / "loop").symlink_to("loop")
    (many.folder / "unreadable").mkdir()
    with connect(many) as connection:
        connection.sendall(request(many, urlsplit(many.address).path + path))
        assert read_all(connection).startswith(b"HTTP/1.1 404 ")
    assert get(many.address)[0] == 200
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "content",
    [b"\r\n\r\n", b"POST / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"],
)
def test_what_is_no_request_is_not_answered_with_a_report(
    many: Server, content: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with connect(many) as connection:
        connection.sendall(content)
        assert read_all(connection).startswith(b"HTTP/1.1 404 ")
    with connect(many) as connection:
        connection.sendall(bytes(100_000))  # a request that has no end
        with contextlib.suppress(ConnectionError):
            assert connection.recv(1) == b""
    assert get(many.address)[0] == 200
    assert capfd.readouterr() == ("", "")


def test_names_that_are_no_text_can_be_opened(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"exam-\xff")
    for path in (folder, tmp_path / "other"):
        path.mkdir()
        (path / "report.html").write_text(path.name[:5])
    with Server(tmp_path) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        _, page = get(server.address)
        assert b'href="exam-%FF/report.html"' in page
        assert get(server.address, urlsplit(server.address).path + "exam-%FF/report.html") == (200, b"exam-")


def test_a_record_of_another_program_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("the report")
    for failures in ("[{}]", '"none"', "7", "[" * 100_000):
        (tmp_path / "run.json").write_text(f'{{"version": 1, "failures": {failures}}}')
        with Server(tmp_path) as server:
            assert not server.failed


def test_what_cannot_be_shown_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(tmp_path / "nowhere")]) == 1
    assert "nowhere is not a folder; give the one that 'mm3d predict' wrote." in capsys.readouterr().err
    assert main(["view", str(tmp_path)]) == 1
    assert "has no report.html; give the folder that 'mm3d predict' wrote." in capsys.readouterr().err
    (tmp_path / "report.html").write_text("the report")
    assert main(["view", str(tmp_path), "--no-browser", "--port", "99999"]) == 1
    assert "Port 99999 cannot be used" in capsys.readouterr().err
