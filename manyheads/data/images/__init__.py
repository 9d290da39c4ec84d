"""Data pipeline for labeled images: file formats, decoding, preprocessing, augmentation and batches."""
