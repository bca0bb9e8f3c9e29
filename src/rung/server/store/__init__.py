"""Pull and delete models of the store in a process of its own, which alone has a use for the network."""
