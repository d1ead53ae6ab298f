"""What is shown of finished runs: a page, figures, tables. Never trains, and needs no torch."""
