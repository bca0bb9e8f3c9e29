"""Pictures and videos from text: pipelines of diffusers, a phase at a time inside a budget of memory."""
