"""Speed and memory of Manyheads, alone and against other libraries in one run: `python -m benchmarks NAME`."""
