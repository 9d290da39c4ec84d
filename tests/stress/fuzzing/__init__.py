"""Everything that hostile input can reach, fuzzed: python -m tests.stress.fuzzing [TARGET ...] --minutes M --seed S

inputs.py        an input: a folder of small files, as one string of bytes, and on disk
mutations.py     how files are harmed, each kind in its own way
judging.py       what is no clean refusal: another error, time, memory, files, network, code
targets/         what is read: valid examples, which Manyheads made itself, and a few lines that use them
engine.py        the process that tries one input after another, guided by coverage
__main__.py      a process a target, which is watched, and the record
"""
