"""`--profile`: where the time of the steps goes, and a trace of two of them."""
