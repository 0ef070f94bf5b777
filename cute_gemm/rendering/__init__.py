"""Tables, HTML and pictures of reports."""
