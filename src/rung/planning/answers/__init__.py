"""Parts of an answer of ``rung check``: other ways to run a model, speeds beside those of others, a sentence."""
