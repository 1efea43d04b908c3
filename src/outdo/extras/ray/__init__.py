"""Ray starts engines and rewards on the machines of a cluster."""
