"""What every room may use: errors, settings, files, workers, console."""
