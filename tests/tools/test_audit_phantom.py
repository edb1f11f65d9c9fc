"""The audit of the virtual trial: its measures are the published ones, and the trial passes its gates."""

from pathlib import Path

import audit_phantom
import numpy as np
import pytest
from audit_phantom import Row, audit, gain_in_auc, kurtosis, main, make_table, measure_breast, power_law_exponent
from PIL import Image
from scipy import ndimage
from support.victre_files import draw_breast, write_mhd

from mm3d.phantom.trial import Trial


def test_the_audits_gates_pass_at_mini_scale() -> None:
    trial = Trial(seed=2, breasts=14, scale="mini", malignant=1.0, benign=0.0)
    rows = make_table(trial, [view for index in range(trial.breasts) for view in measure_breast(trial, index)])
    judged = [row for row in rows if row.passed is not None]
    assert len(judged) >= 9
    assert [(row.measure, row.ours) for row in judged if not row.passed] == []


def test_a_gate_fails_outside_its_limits_and_is_silent_with_a_note() -> None:
    assert Row("β", 3.0, 1, "", 2.9, 3.4).passed is True
    assert Row("β", 3.5, 1, "", 2.9, 3.4).passed is False
    assert Row("kurtosis", 1.3, 1, "", 1.4, None).passed is False
    assert Row("β", 3.5, 1, "", 2.9, 3.4, "not judged: too few").passed is None
    assert Row("kurtosis", 1.3, 1).passed is None


def test_an_audit_that_fails_says_so_with_its_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = [Row("β", 9.9, 1, "", 2.9, 3.4)]
    monkeypatch.setattr(audit_phantom, "make_table", lambda *_: wrong)
    assert audit(Trial(seed=0, breasts=1, scale="tiny"), tmp_path, 1) == 1
    assert '"passed": false' in (tmp_path / "audit.json").read_text()


def test_the_measures_know_clouds_from_tissue_and_find_an_exponent() -> None:
    rng = np.random.default_rng(0)
    size, pixel = 512, 0.25
    f = np.hypot(np.fft.fftfreq(size, pixel)[:, None], np.fft.fftfreq(size, pixel))
    f[0, 0] = 1
    clouds = np.fft.ifft2(np.fft.fft2(rng.standard_normal((size, size))) * f**-1.5).real
    everywhere = np.ones((size, size), bool)
    assert power_law_exponent(clouds[None], everywhere, pixel) == pytest.approx(3.0, abs=0.15)
    assert abs(kurtosis(clouds, everywhere, pixel, 1.0)) < 0.3
    strands = clouds * 1e-3 + ndimage.gaussian_filter((rng.random((size, size)) > 0.9995).astype(float), 2)
    assert kurtosis(strands, everywhere, pixel, 1.0) > 3


def test_a_reader_gains_from_a_larger_d() -> None:
    flat = np.array([5.0, 20.0, 80.0])
    assert gain_in_auc(flat, flat) == pytest.approx(0)
    assert 0.02 < gain_in_auc(flat, 1.5 * flat) < 0.15


def test_real_slices_pass_the_gates_of_the_audit(real_data: Path) -> None:
    """The measures are the published ones: on real tomosynthesis they give what the audit asks of ours."""
    betas, kurtoses = [], []
    for path in sorted((real_data / "bcs-dbt" / "annotated-slices").glob("*.jpg"))[::8]:
        whole = np.asarray(Image.open(path).convert("L"), dtype=np.float32)
        rows, columns = whole.shape[0] // 2 * 2, whole.shape[1] // 2 * 2
        image = whole[:rows, :columns].reshape(rows // 2, 2, columns // 2, 2).mean(axis=(1, 3))
        regions, _ = ndimage.label(ndimage.binary_opening(ndimage.gaussian_filter(image, 4) > 8, iterations=6))
        breast = ndimage.binary_fill_holes(regions == 1 + np.argmax(np.bincount(regions.ravel())[1:]))
        betas.append(power_law_exponent(image[None], breast, 0.22))
        kurtoses.append([kurtosis(image, breast, 0.22, size) for size in (0.5, 1.0)])
    assert 2.6 < np.nanmean(betas) < 3.3
    assert (np.mean(kurtoses, axis=0) > 1.4).all()


def test_the_command_prints_the_table_and_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--breasts", "2", "--scale", "tiny", "--malignant", "1", "--benign", "0"]
    assert main([str(tmp_path), *few]) == 0
    printed = capsys.readouterr().out
    assert "5 of 5 gates pass" in printed  # those of the women that breasts are drawn from
    assert "too coarse" in printed
    assert "fewer than" in printed
    assert {path.name for path in tmp_path.iterdir()} == {"audit.json", "montage.png"}


def test_a_breast_of_others_is_measured_like_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_mhd(tmp_path / "victre", draw_breast())
    main([str(tmp_path / "audit"), "--anatomy", str(path), "--scale", "tiny"])
    printed = capsys.readouterr().out
    assert "spiculated mass" in printed  # its mass
    assert "density" not in printed  # no women are drawn
    assert {path.name for path in (tmp_path / "audit").iterdir()} == {"audit.json"}


def test_settings_that_cannot_be_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path), "--scale", "huge"])
    assert "scale = 'huge' is none of tiny, mini, midi, full" in capsys.readouterr().err
