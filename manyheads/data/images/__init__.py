"""Images with labels: the forms they are kept in, decoding, preprocessing, augmentation, batches."""
