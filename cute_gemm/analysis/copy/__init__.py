"""A copy of one's own, judged by the model of the reports."""
