"""What would not work, found before it is submitted: of this machine, a cluster, a node."""
