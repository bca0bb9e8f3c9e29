"""Growth of splats while they are trained: adaptive density control, and Markov chain Monte Carlo."""
