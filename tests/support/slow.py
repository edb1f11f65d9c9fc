"""Tests that `make test-quick` leaves out: they need Debian packages, or take more than a few seconds."""

# Names of files and of single tests.
SLOW = {
    "test_audit_phantom",
    "test_demo",
    "test_dicom_archive",
    "test_dicom_report",
    "test_dicom_write",
    "test_full_size",
    "test_other_systems",
    "test_phantom",
    "test_phantom_run",
    "test_predict",
    "test_predict_exams",
    "test_predict_problems",
    "test_prepare_run",
    "test_readme",
    "test_report_viewer",
    "test_study",
    "test_train_ranks",
    "test_train_run",
    "test_training",
    "test_view",
    "test_walk",
    "test_a_full_size_exam_stays_below_25_megabytes",
    "test_two_ranks_train_like_one_with_the_whole_batch",
    "test_under_torch_compile",
}
