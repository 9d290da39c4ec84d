"""Compiled kernels of a fused stack (`manyheads.inference.stack`), their packed weights, and the threads that run them.

`fused.py` applies all layers of a stack. It is built from the operations on rows in `operations.py`, from attention in
`attending.py`, and from the loops that `tile.py` and `amx.py` generate as LLVM code. `reducing.py` prepares the logits
of a decoding step. `compiling.py` compiles these modules; `compiled.py` stores and loads the machine code, and
`packed.py` calls it.
"""
