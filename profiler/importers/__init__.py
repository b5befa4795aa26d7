"""What others measured, read from their files: one module and one function a format."""
