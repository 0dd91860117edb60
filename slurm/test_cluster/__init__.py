"""The test cluster: packages, configuration, daemons. Only the standard library is used."""
