"""Settings of property tests whose subject must withstand hostile input."""

from __future__ import annotations

from hypothesis import settings

_USUAL = settings().max_examples
_DEFAULT = settings.get_profile("netarena").max_examples
#: Under the default profile, more examples than other tests have; other profiles keep their number.
THOROUGH = settings(max_examples=100 if _USUAL == _DEFAULT else _USUAL)
