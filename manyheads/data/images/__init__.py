"""Labeled images: file formats, decoding, preprocessing, augmentation and batches."""
