"""The report of an exam: one HTML file to look at, and the server that shows it."""
