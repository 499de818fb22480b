"""The report of an evaluation: a self-contained HTML page, and Markdown with pictures beside it.

`write.write_report` makes both. Nothing is imported here.
"""
