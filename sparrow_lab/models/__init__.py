"""Models: built-in tiny ones, fetched ones, local folders, hub ids."""
