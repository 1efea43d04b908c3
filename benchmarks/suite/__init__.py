"""`make bench`: the same work by outdo and by its peers, in turns, beside what the machine can do."""
