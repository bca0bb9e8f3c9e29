"""Turn signatures, rules and words into probabilities of causes, and say how sure they are."""
