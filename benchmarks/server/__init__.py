"""``rung serve`` under hostility and load: hostile requests, hang-ups, company, forms.

    python -m benchmarks.server.hostile [--count 10000]
    python -m benchmarks.server.hangups [--count 5000]
    python -m benchmarks.server.answers [--count 10000]
    python -m benchmarks.server.schemas [--count 10000]
    python -m benchmarks.server.llama_tests --python PYTHON

Each starts a server of the demo, or of ``--model``, prints what it found, and ends with 1 where a promise does not
hold; the suite runs a small sample of each. The last one runs llama.cpp's own tests and prints their outcomes.
"""
