"""Tables and figures of the paper and beyond, from training to file: `faustnet reproduce`."""
