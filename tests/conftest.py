"""Before torch is imported anywhere, here and in the processes that tests start."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny tensors: a second thread costs more than it gives
