"""Prove and measure what must hold on a device, part by part.

    python -m benchmarks.accept --device DEVICE --out FOLDER [--only PART ...] [--small]

A part is a module of ``parts`` with ``SECONDS``, its time limit, and ``run(target)``, which yields a ``Check`` for each
thing that it proves or measures. Each part is a process of its own and writes ``FOLDER/PART.json`` after every check,
so what it found before it was killed is kept. The same parts run on any device; ``--small`` takes small shapes and few
formats, and judges no speed: it shows that the suite works.
"""
