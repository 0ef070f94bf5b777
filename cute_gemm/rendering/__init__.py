"""Tables, HTML and pictures that reports are shown as."""
