"""JSON schemas, rewritten so that llguidance holds answers to them: ``forms`` begins it."""
