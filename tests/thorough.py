"""Settings of property tests whose subject must withstand hostile input."""

from __future__ import annotations

from hypothesis import settings

_USUAL = settings().max_examples
#: More examples than the default profile has; the profile of the second Python version keeps its
#: few.
THOROUGH = settings(max_examples=100 if _USUAL >= 40 else _USUAL)
