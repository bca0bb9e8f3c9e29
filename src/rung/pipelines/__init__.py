"""Pictures and videos from text: pipelines of diffusers, a phase at a time inside a budget of memory."""

import rung.engine  # noqa: F401  how torch's threads wait, which must be said before it is imported
