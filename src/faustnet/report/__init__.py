"""Tables, figures, model cards and pages about finished runs. Imports no torch."""
