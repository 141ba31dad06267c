"""The ids of the control symbols in the layout of the published SONAR models; imports nothing.

Sentencepiece's pieces follow, shifted by one, then the languages.
"""

from __future__ import annotations

PAD, UNKNOWN, BEGIN, END = 0, 1, 2, 3
