"""Codes of the 60 languages in the built-in corpus for text classification."""

# Phrases are generated for two languages at a time: the first and second of this list, the third and fourth, and so on.
# Related languages are not paired, because their phrases could be nearly identical.
LANGUAGES = [
    "en", "ja", "de", "ru", "fr", "uk", "es", "el", "it", "bg", "pt", "tr", "nl", "ar", "sv",
    "cs", "da", "he", "nb", "hu", "fi", "sr", "is", "hi", "et", "ko", "lv", "th", "lt", "zh",
    "pl", "ka", "sk", "fa", "sl", "bn", "hr", "vi", "mk", "ro", "be", "cy", "sq", "ta", "eu",
    "hy", "ca", "ur", "gl", "te", "ga", "kk", "af", "mr", "sw", "az", "zu", "ml", "id", "uz",
]  # fmt: skip
assert len(set(LANGUAGES)) == len(LANGUAGES) == 60
