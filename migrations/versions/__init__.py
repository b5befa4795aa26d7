"""One file per revision, numbered in order."""
