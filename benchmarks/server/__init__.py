"""``rung serve`` under hostility and load: hostile requests, hang-ups, company, forms.

    python -m benchmarks.server.hostile [--count 10000]
    python -m benchmarks.server.hangups [--count 5000]
    python -m benchmarks.server.answers [--count 10000]
    python -m benchmarks.server.schemas [--count 10000]

Each starts a server of the demo, or of ``--model``, prints what it found, and ends with 1 where a promise does not
hold. The suite runs a small sample of each.
"""
