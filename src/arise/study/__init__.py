"""Studies: experiments times seeds, their statistics, figures and report."""
