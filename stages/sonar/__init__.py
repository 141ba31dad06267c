"""The SONAR text models: cards, tokenizer, networks, weights, generation and the recipe that trains a small one.

Importing this package asks MKL for strict reproducibility; MKL reads the setting at its first call in the process. A
row of a float32 matmul then comes out the same, bit for bit, with any number of other rows and of threads. Without it
MKL takes other kernels for fewer than 16 rows and splits long sums among threads. Measured cost: within noise. On AMD's
CPUs it takes other kernels for fewer than 4 rows even so, and oneDNN, which multiplies bfloat16, for fewer than some
hundred: `networks.linear` fills them up (`stages/rows.py`).
"""

import os

os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
