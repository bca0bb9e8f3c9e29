"""The parts of the suite, found by folder; ``ORDER`` says when one runs."""
