"""Fuzzing of all code that reads untrusted input: python -m tests.stress.fuzzing [TARGET ...] --minutes M --seed S

inputs.py        an input: a folder of small files, as one byte string and on disk
mutations.py     mutations of files, specific to each format
judging.py       detection of findings: unexpected errors, time, memory, files, network, code
targets/         valid examples, made by Manyheads, and the functions that read them
engine.py        the process that tries inputs one after another, guided by coverage
__main__.py      supervisor with one process per target, and the record
"""
