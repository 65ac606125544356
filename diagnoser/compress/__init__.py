"""The real-time compressor: lines in, a small mergeable delta out, a digest for rules, models and people.

``Compressor(gate, filters).feed(block)`` then ``.take()`` gives a ``Delta``; ``merge`` makes one of many; ``digest``
reads it.
"""

from diagnoser.compress.attempt_log import AttemptLog
from diagnoser.compress.codec import from_bytes, read_together, to_bytes
from diagnoser.compress.compressor import Compressor
from diagnoser.compress.delta import Delta, Losses
from diagnoser.compress.digest import Digest, digest
from diagnoser.compress.filters import FilterSet, parse_filters
from diagnoser.compress.limits import CompressorLimits
from diagnoser.compress.prefilter import Prefilter
from diagnoser.compress.raw_chunks import pack
from diagnoser.compress.raw_chunks import read as read_pieces
from diagnoser.compress.sampling import merge
