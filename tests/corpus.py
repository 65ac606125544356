"""Where the labelled logs lie. They are not part of the project; tests that read them skip when they are absent."""

from pathlib import Path

import pytest

CORPUS = Path(__file__).resolve().parents[2] / "shared" / "corpus"
needs_corpus = pytest.mark.skipif(
    not CORPUS.is_dir(), reason="labelled logs absent: put the corpus at ../shared/corpus beside the checkout"
)
