"""One module per kernel family: config, legality, copies and MMAs, launch shape."""
