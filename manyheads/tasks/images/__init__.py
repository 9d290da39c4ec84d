"""What is in an image."""
