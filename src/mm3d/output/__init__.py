"""What is written of findings: predictions files, the report page, structured reports."""
