"""`make bench`: time the same work in outdo, TRL and transformers, and compare with the roofline of the machine."""
