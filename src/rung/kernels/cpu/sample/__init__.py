"""Choose the next token of several rows of logits: records of rows, the search among logits, the kernel."""
