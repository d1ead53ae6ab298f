"""The paper's table and figures, from training to picture."""
