"""What is shown of finished runs: one HTML page. Never trains, and needs no torch."""
