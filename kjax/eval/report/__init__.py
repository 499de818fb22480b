"""Reports as self-contained HTML pages; `page.write_report` writes that of an evaluation."""
